"""How many calls of judges a step of a stage makes, from the recipe alone; nothing is asked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sleuth.cite.measure import MAX_SHEET
from sleuth.cite.rubric_reward import STATIC
from sleuth.recipe import Recipe
from sleuth.recipe.recipe import StageFields
from sleuth.recipe.rewards import AnswerSize

OWN_CRITERIA = 5
"""Criteria of a row, where it has its own: as many as the rows of the published refiners have at most."""
CLAIMS, CASES = 5, 3
"""Claims of an answer, and cases of a claim with two ids: both together, and each alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCalls:
    """Up to so many `calls` of a model in one step by the kind of the reward, without repeats of failed ones. Equal
    cases are asked once, so that siblings which say the same need fewer. `assumed`: what rows and answers decide is
    assumed."""

    stage: str
    calls: Mapping[str, int]
    assumed: bool

    @property
    def total(self) -> int:
        """The calls of all rewards."""
        return sum(self.calls.values())

    def line(self) -> str:
        """`grpo: up to 5,888 judge calls a step (rubric 2,048, citation 3,840), with 5 criteria a row, ...`."""
        parts = ", ".join(f"{kind} {calls:,}" for kind, calls in self.calls.items())
        sizes = f", with {OWN_CRITERIA} criteria a row and {CLAIMS} claims of two ids an answer"
        assumed = sizes if self.assumed else ""
        return f"{self.stage}: up to {self.total:,} judge calls a step ({parts}){assumed}"


def step_calls(recipe: Recipe) -> list[StepCalls]:
    """The calls in a step of each stage whose rewards ask a model over HTTP."""
    return [found for stage in recipe.stage if (found := _of_stage(stage)) is not None]


def _of_stage(stage: StageFields) -> StepCalls | None:
    static = {name: len(criteria) for name, criteria in STATIC.items()}
    cited = CLAIMS * CASES
    size = AnswerSize(own=OWN_CRITERIA, static=static, cited=cited, cited_sheets=math.ceil(cited / MAX_SHEET))
    calls: dict[str, int] = {}
    assumed = False
    for kind, asked, depends_on_rows in stage.judge_calls(size):
        if asked:
            calls[kind] = calls.get(kind, 0) + math.ceil(asked)
            assumed = assumed or depends_on_rows
    return StepCalls(stage=stage.name, calls=calls, assumed=assumed) if calls else None
