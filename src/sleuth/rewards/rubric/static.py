"""Criteria that every answer is judged by, whatever was asked."""

from __future__ import annotations

from sleuth.types import Rubric

REFINER = (
    Rubric(
        title="Citation Discipline",
        description="Every fact that the answer tells stands in a tag which names a snippet of the evidence, and that "
        "snippet tells the same fact.",
    ),
    Rubric(
        title="Off-Query Padding",
        description="The answer tells what the question does not ask for, says the same twice, or holds sentences that "
        "tell nothing.",
        wanted=False,
    ),
    Rubric(
        title="Wrong-Entity Confabulation",
        description="The answer says of a person, place, work or organisation what the evidence says of another one, "
        "such as a namesake, or of none.",
        wanted=False,
    ),
)
"""Under the names that the published refiners' card gives to theirs. Neither their wording nor whether the first is
wanted was published: both are ours."""

STATIC: dict[str, tuple[Rubric, ...]] = {"none": (), "refiner": REFINER}
"""By the name that a recipe gives them."""
