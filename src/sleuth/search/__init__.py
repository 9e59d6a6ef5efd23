"""Searching: an agent that asks an index in turns and answers from the passages."""

from __future__ import annotations

from sleuth.family import Family

FAMILY = Family(
    name="search",
    about="Agents that search an index in turns, and answer from what they found.",
    stages={
        "warm_start": "sleuth.recipe.supervised:WarmStartRecipe",
    },
    environments={
        "search": "sleuth.recipe.envs:SearchEnvRecipe",
    },
    rewards={
        "cited_answer": "sleuth.search.rewards:CitedAnswerRecipe",
    },
)
