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
    credits={
        "citation_gain": "sleuth.cite.rewards:CitationGainRecipe",
    },
    other_dialects=("sleuth.cite.dialect:ANSWER_ONLY", "sleuth.cite.dialect:THINKING"),
)
