"""How many calls of judges a step of a stage makes, from the recipe alone; nothing is asked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sleuth.judges.tournament import rounds_of
from sleuth.recipe import CitationRecipe, GrpoRecipe, OnlineDpoRecipe, Recipe, RubricRecipe, SuffixRecipe
from sleuth.recipe.judges import HttpJudgeRecipe
from sleuth.recipe.preference import PairwiseRecipe, PointwiseRecipe
from sleuth.recipe.recipe import StageRecipe
from sleuth.recipe.rewards import RewardRecipe
from sleuth.rewards.citation.measure import MAX_SHEET
from sleuth.rewards.rubric import STATIC

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


def _of_stage(stage: StageRecipe) -> StepCalls | None:
    calls: dict[str, int] = {}
    assumed = False
    if isinstance(stage, GrpoRecipe):
        for reward in stage.reward:
            if asked := math.ceil(stage.prompts_per_step * stage.samples_per_prompt * _of_answer(reward)):
                calls[reward.kind] = calls.get(reward.kind, 0) + asked
                assumed = assumed or _depends_on_rows(reward)
    elif isinstance(stage, OnlineDpoRecipe) and stage.loss.kind != "original_nll":
        pool = stage.samples_per_prompt + 1 + (stage.rewrites is not None)
        for part in stage.reward:
            if isinstance(part, PairwiseRecipe | PointwiseRecipe) and isinstance(part.judge, HttpJudgeRecipe):
                asked = pool if isinstance(part, PointwiseRecipe) else _of_pool(part, pool)
                calls[part.kind] = calls.get(part.kind, 0) + stage.prompts_per_step * asked
    return StepCalls(stage=stage.name, calls=calls, assumed=assumed) if calls else None


def _depends_on_rows(reward: RewardRecipe) -> bool:
    rubric = isinstance(reward, RubricRecipe) and reward.own and not reward.asks_sheets
    return rubric or isinstance(reward, CitationRecipe)


def _of_answer(reward: RewardRecipe) -> float:
    """Calls for one answer, those of a judge that watches included."""
    if isinstance(reward, SuffixRecipe):
        return float(isinstance(reward.judge, HttpJudgeRecipe))
    if not isinstance(reward, RubricRecipe | CitationRecipe):
        return 0.0
    cases, sheets = CLAIMS * CASES, math.ceil(CLAIMS * CASES / MAX_SHEET)
    if isinstance(reward, RubricRecipe):
        cases, sheets = OWN_CRITERIA * reward.own + len(STATIC.get(reward.static, ())), 1
    paid = sheets if reward.asks_sheets else cases
    calls = float(paid * isinstance(reward.judge, HttpJudgeRecipe))
    if reward.watch is not None and isinstance(reward.watch.judge, HttpJudgeRecipe):
        calls += reward.watch.share * cases  # who watches is asked about one case at a time
    return calls


def _of_pool(part: PairwiseRecipe, size: int) -> int:
    pairs = size * (size - 1) // 2 if part.schedule == "round_robin" else rounds_of(size) * -(-size // 2)
    return pairs * (2 if part.orders == "both" else 1)
