"""What parts of a recipe add to the steps of a GRPO stage: scores that are computed late, and figures of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from sleuth.cite.dialect import refines
from sleuth.cite.red_team import Attack, attack
from sleuth.learn.token_budget import TokenBudget
from sleuth.recipe.grpo import CreditRecipe
from sleuth.render import find_eos_ids
from sleuth.search.credit_assignment import assign_credit
from sleuth.think.suffix_reward import thought_figures
from sleuth.think.thought_gain import GainScorer, gain_in
from sleuth.think.thoughts import ThoughtSetting
from sleuth.training.loop import Figures
from sleuth.training.rollout_worker import RolloutWorker, shuffled_scores
from sleuth.training.stage_context import Saved
from sleuth.types import Group, Task


class Hook:
    """Acts beside the loop of a GRPO stage; each method does nothing until a hook overrides it."""

    def opening(self) -> list[str]:
        """Lines to print before the first step."""
        return []

    def score(self, step: int, groups: list[Group]) -> tuple[list[Group], Figures]:
        """The groups with what can be scored only after all episodes have ended, and figures of it."""
        return groups, {}

    def after_update(self) -> None:
        """Called when an optimiser step has changed the weights."""

    def measure(self, step: int, groups: Sequence[Group]) -> Figures:
        """More figures of a step, once its weights are published."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The hook's part of a checkpoint's state."""
        return {}


def hooks_of(
    worker: RolloutWorker,
    model: PreTrainedModel,
    budget: TokenBudget,
    frozen: PreTrainedModel | None,
    saved: Saved | None,
) -> list[Hook]:
    """The hooks that a recipe asks for. `frozen` has the weights that the stage started from."""
    stage = worker.stage
    hooks: list[Hook] = []
    if isinstance(worker.setting, ThoughtSetting):
        hooks.append(ThoughtRewards(worker, worker.setting, model, budget, frozen, saved))
    if stage.credit is not None:
        hooks.append(CreditAssignment(worker, stage.credit, model, budget))
    if stage.red_team_every and refines(worker.setting.dialect):
        hooks.append(RedTeam(worker, stage.red_team_every))
    return hooks


class ThoughtRewards(Hook):
    """`env.kind = "thought"`: rewards thoughts for their gain, if the recipe does, and measures how they look."""

    def __init__(
        self,
        worker: RolloutWorker,
        setting: ThoughtSetting,
        model: PreTrainedModel,
        budget: TokenBudget,
        frozen: PreTrainedModel | None,
        saved: Saved | None,
    ) -> None:
        rewards = worker.stage.reward
        self.worker, self.setting, self.model, self.budget = worker, setting, model, budget
        self.ends = find_eos_ids(model.generation_config, worker.renderer.tokenizer)
        self.tags = setting.dialect.think
        self.shuffles = any(reward.shuffle for reward in rewards)
        self.scorer: GainScorer | None = None
        gain = gain_in(rewards)
        if gain is not None and frozen is not None:
            tags = (setting.opening_tag, setting.closing_tag)
            self.scorer = GainScorer(gain, frozen, tags, saved.state["scorer"] if saved else {})

    def score(self, step: int, groups: list[Group]) -> tuple[list[Group], Figures]:
        signs = thought_figures(groups, self.tags, self.ends)
        figures: Figures = {}
        if (scorer := self.scorer) is not None:
            played = groups
            groups, figures = self.budget.run(lambda tokens: scorer.score(played, self.model, budget=tokens))
        if self.shuffles:
            groups = shuffled_scores(groups, (*self.worker.context.key, step))
        if self.setting.least_thought_tokens is not None:
            shrunk = self.setting.for_step(step, self.worker.stage.steps, dict)
            figures["thought_budget"] = float(shrunk.limits.thought_tokens)
        return groups, {**figures, **signs}

    def after_update(self) -> None:
        if self.scorer is not None:
            self.scorer.follow(self.model)

    def state_dict(self) -> dict[str, Any]:
        return {"scorer": self.scorer.state_dict() if self.scorer is not None else {}}


class CreditAssignment(Hook):
    """`[stage.credit]`: adds credit to the tokens of single searches or citations."""

    def __init__(
        self, worker: RolloutWorker, recipe: CreditRecipe, model: PreTrainedModel, budget: TokenBudget
    ) -> None:
        self.worker, self.recipe, self.model, self.budget = worker, recipe, model, budget

    def score(self, step: int, groups: list[Group]) -> tuple[list[Group], Figures]:
        worker = self.worker
        return self.budget.run(
            lambda budget: assign_credit(
                groups,
                self.recipe,
                self.model,
                worker.renderer,
                worker.setting,
                budget=budget,
                temperature=worker.stage.sampling.temperature,
                ranks=worker.context.ranks,
            )
        )


class RedTeam(Hook):
    """`red_team_every`: scores known tricks with the stage's reward, beside honest answers to the same questions."""

    def __init__(self, worker: RolloutWorker, every: int) -> None:
        self.worker, self.every = worker, every

    def opening(self) -> list[str]:
        return [self.worker.context.ranks.broadcast(lambda: self._attack(self.worker.order.items).line())]

    def measure(self, step: int, groups: Sequence[Group]) -> Figures:
        if step % self.every:
            return {}
        return self.worker.context.ranks.broadcast(lambda: self._attack([group.task for group in groups]).figures())

    def _attack(self, tasks: Sequence[Task]) -> Attack:
        worker = self.worker
        assert worker.reward is not None  # only the first rank attacks
        found = asyncio.run(attack(tasks, worker.setting, worker.reward))
        worker.judge_pool.figures()  # the judge calls of an attack belong to no step
        return found
