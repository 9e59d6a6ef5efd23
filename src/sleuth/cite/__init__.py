"""Citing: the evidence of a search, rewritten as one answer whose claims cite it."""

from __future__ import annotations

from sleuth.family import Family

FAMILY = Family(
    name="cite",
    about="Refiners: the evidence of a search, rewritten as one answer whose claims cite it.",
    environments={
        "refine": "sleuth.recipe.envs:RefineEnvRecipe",
    },
    rewards={
        "citation": "sleuth.cite.rewards:CitationRecipe",
        "rubric": "sleuth.cite.rewards:RubricRecipe",
    },
    other_dialects=("sleuth.cite.dialect:ANSWER_ONLY", "sleuth.cite.dialect:THINKING"),
    thoughtless=("refine_answer_only",),
    texts={
        "placing": "sleuth.cite.world_citing:PLACING",
        "citing": "sleuth.cite.world_citing:CITING",
        "strangers": "sleuth.cite.world_citing:STRANGERS",
        "namesakes": "sleuth.cite.world_citing:NAMESAKES",
        "refining": "sleuth.cite.world_refining:REFINING",
    },
    layouts={"refiner": "sleuth.cite.rows:LAYOUT"},
    world_files="sleuth.cite.world_tool_outputs:WORLD_FILES",
)
