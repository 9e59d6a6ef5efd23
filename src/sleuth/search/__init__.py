"""Searching: an agent that asks an index in turns and answers from the passages."""

from __future__ import annotations

from sleuth.family import Family

FAMILY = Family(
    name="search",
    about="Agents that search an index in turns, and answer from what they found.",
    stages={
        "warm_start": "sleuth.search.warm_start_table:WarmStartRecipe",
    },
    environments={
        "tools": "sleuth.search.tables:ToolEnvRecipe",
        "search": "sleuth.search.tables:SearchEnvRecipe",
    },
    dialects={
        "sleuth": "sleuth.search.dialects.sleuth:SLEUTH",
        "search_r1": "sleuth.search.dialects.search_r1:SEARCH_R1",
        "slime": "sleuth.search.dialects.slime:SLIME",
        "verl": "sleuth.search.dialects.verl:VERL",
        "research": "sleuth.search.dialects.research:RESEARCH",
        "research_card": "sleuth.search.dialects.research:RESEARCH_CARD",
        "chat": "sleuth.search.dialects.chat:CHAT",
    },
    other_dialects=("sleuth.search.dialects.tools:TOOLS_CHAT", "sleuth.search.dialects.tools:TOOLS_TEXT"),
    texts={
        "reading": "sleuth.search.world_rows:READING",
        "twins": "sleuth.search.world_rows:TWINS",
        "phrasing": "sleuth.search.world_rows:PHRASING",
        "lookup": "sleuth.search.world_rows:LOOKUP",
        "plan": "sleuth.search.world_rows:PLAN",
        "episode": "sleuth.search.world_rows:EPISODE",
    },
    layouts={"search_r1": "sleuth.search.search_r1_rows:LAYOUT"},
    figures=("sleuth.search.figures:FIGURES", "sleuth.search.figures:STEPS"),
    rewards={
        "cited_answer": "sleuth.search.rewards:CitedAnswerRecipe",
    },
    credits={
        "search_gain": "sleuth.search.rewards:SearchGainRecipe",
    },
    verbs={"Evaluate": {"probe": "sleuth.search.verbs:probe"}},
)
