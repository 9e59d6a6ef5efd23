"""What a stage whose policy thinks adds to the steps of group-relative policy optimisation: what thoughts gained, and
how they look."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from torch import Tensor
from transformers import PreTrainedModel

from sleuth.factories import ThoughtSetting
from sleuth.learn.token_budget import TokenBudget
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.rewards.thoughts import thought_figures
from sleuth.training.credit.thought_gain import GainScorer, gain_in
from sleuth.types import Group

Figures = Mapping[str, float | None]


class Thoughts:
    """`ends` are the tokens that end a text; `frozen` the weights that the stage began with, where gains are paid, and
    `moved` what `state_dict` told of those of a moving scorer."""

    def __init__(
        self,
        stage: GrpoRecipe,
        setting: ThoughtSetting,
        ends: Collection[int],
        frozen: PreTrainedModel | None,
        moved: Mapping[str, Tensor],
    ) -> None:
        gain = gain_in(stage.reward)
        tags = (setting.opening_tag, setting.closing_tag)
        self.scorer = GainScorer(gain, frozen, tags, moved) if gain is not None and frozen is not None else None
        self.shuffles = any(reward.shuffle for reward in stage.reward)
        self.tags = setting.dialect.think
        self.ends = ends

    def paid(
        self, groups: Sequence[Group], budget: TokenBudget, key: tuple[int, ...]
    ) -> tuple[list[Group], dict[str, float | None]]:
        """The groups with all that they are paid, and the figures of their thoughts."""
        paid, figures = list(groups), {}
        if (scorer := self.scorer) is not None:
            paid, figures = budget.run(lambda tokens: scorer.score(groups, budget=tokens))
        signs = thought_figures(groups, self.tags, self.ends)
        return shuffled_scores(paid, key) if self.shuffles else paid, {**figures, **signs}

    def follow(self, policy: PreTrainedModel) -> None:
        """The policy took a step."""
        if self.scorer is not None:
            self.scorer.follow(policy)

    def state_dict(self) -> dict[str, Tensor]:
        """What a stage needs to go on, beside the policy's."""
        return self.scorer.state_dict() if self.scorer is not None else {}


def shuffled_scores(groups: Sequence[Group], key: tuple[int, ...]) -> list[Group]:
    """Control arm: the step's scores dealt out anew, so that they say nothing about the episodes they land on."""
    scores = [score for group in groups for score in group.scores]
    random.Random(f"shuffle {key}").shuffle(scores)
    shuffled = iter(scores)
    return [replace(group, scores=tuple(next(shuffled) for _ in group.scores)) for group in groups]
