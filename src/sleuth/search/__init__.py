"""Searching: an agent that asks an index in turns and answers from the passages."""

from __future__ import annotations

from sleuth.family import Family

FAMILY = Family(
    name="search",
    about="Agents that search an index in turns, and answer from what they found.",
    stages={"warm_start": "sleuth.search.tables:WarmStartRecipe"},
    environments={"tools": "sleuth.search.tables:ToolEnvRecipe", "search": "sleuth.search.tables:SearchEnvRecipe"},
    dialects={
        "sleuth": "sleuth.search.dialects:SLEUTH",
        "quoting": "sleuth.search.dialects:QUOTING",
        "search_r1": "sleuth.search.dialects:SEARCH_R1",
        "slime": "sleuth.search.dialects:SLIME",
        "verl": "sleuth.search.dialects:VERL",
        "research": "sleuth.search.dialects:RESEARCH",
        "research_card": "sleuth.search.dialects:RESEARCH_CARD",
        "chat": "sleuth.search.dialects:CHAT",
    },
    other_dialects=("sleuth.search.dialects:TOOLS_CHAT", "sleuth.search.dialects:TOOLS_TEXT"),
    texts={
        "reading": "sleuth.search.world:READING",
        "twins": "sleuth.search.world:TWINS",
        "phrasing": "sleuth.search.world:PHRASING",
        "lookup": "sleuth.search.world:LOOKUP",
        "plan": "sleuth.search.world:PLAN",
        "episode": "sleuth.search.world:EPISODE",
    },
    layouts={"search_r1": "sleuth.search.rows:SEARCH_R1"},
    figures=("sleuth.search.figures:FIGURES", "sleuth.search.figures:STEPS"),
    rewards={"cited_answer": "sleuth.search.tables:CitedAnswerRecipe"},
    credits={"search_gain": "sleuth.search.tables:SearchGainRecipe"},
    verbs={"Evaluate": {"probe": "sleuth.search.verbs:probe"}},
)
