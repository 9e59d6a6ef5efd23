"""Thoughts paid for what they make likelier: the true suffix, to a scorer that does not learn with the policy.

    gain(z) = 1/N sum_t [ log p(s_t | x, <think> z </think>, s_<t) - log p(s_t | x, <think></think>, s_<t) ]

in nats a token of the suffix s. Nothing is written behind a thought and nobody judges (arXiv:2510.01265, whose baseline
has no thought at all; ours has an empty one, so that what the tags alone do is nobody's gain). All stories of a group
share its prefix, which is computed once, and so does the thought of another group that is tried in its place: what a
foreign thought gains says whether thoughts are about their text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sleuth.envs.thought import Thinking, thinking_of
from sleuth.evaluation.counterfactual import Telling, read_twice, suffix_row
from sleuth.learn.policy import frozen_copy
from sleuth.recipe.rewards import GainRecipe, RewardRecipe
from sleuth.types import Group, Piece, Score

DECAY = 0.999
"""Of a moving scorer, the share that stays at each step (arXiv:2510.01265)."""


class GainScorer:
    """A scorer of thoughts: `frozen` are the weights that the stage began with, `model` those that it has now."""

    def __init__(
        self, recipe: GainRecipe, frozen: PreTrainedModel, tags: tuple[Piece, Piece], moved: Mapping[str, Tensor] | None
    ) -> None:
        self.recipe = recipe
        self.model = frozen_copy(frozen) if recipe.scorer == "moving" else frozen
        self.opening, self.closing = (tuple(tag.tokens or ()) for tag in tags)
        self.closing_text = tags[1].text
        if moved:
            self.model.load_state_dict(dict(moved))

    def score(self, groups: Sequence[Group], *, budget: int) -> tuple[list[Group], dict[str, float | None]]:
        """The groups with the gain of each thought added to the score it has, and the step's figures of that: the mean
        `gain`, what a foreign thought would have gained (`swapped_gain`), and `blank_nll`, the surprise of a suffix's
        token behind an empty thought, which is the most that can be gained.

        A thought that was never closed gains no more than an empty one does, nor than its worst sibling.
        """
        told = [[thinking_of(episode.trajectory, self.closing_text) for episode in group.episodes] for group in groups]
        own = [
            self._telling(group, one.story)
            for group, of_group in zip(groups, told, strict=True)
            for one in of_group
            if one.closed_by
        ]
        foreign = list(self._foreign(groups, told))
        read = read_twice(self.model, [*own, *foreign], budget=budget)
        values = iter([fmean(one.gained) for one in read[: len(own)]])
        gains = [[next(values) if one.closed_by else None for one in of_group] for of_group in told]
        return [self._paid(*of_group) for of_group in zip(groups, gains, strict=True)], {
            "gain": _mean([value for of_group in gains for value in of_group if value is not None]),
            "swapped_gain": _mean([fmean(one.gained) for one in read[len(own) :]]),
            "blank_nll": _mean([-fmean(one.otherwise) for one in read[: len(own)]]),
        }

    def follow(self, policy: PreTrainedModel) -> None:
        """One step behind the policy; a frozen scorer stays where it is."""
        if self.recipe.scorer == "frozen":
            return
        decay = DECAY if self.recipe.decay is None else self.recipe.decay
        with torch.no_grad():
            for ours, theirs in zip(self.model.parameters(), policy.parameters(), strict=True):
                ours.lerp_(theirs.to(ours.dtype), 1 - decay)

    def state_dict(self) -> dict[str, Tensor]:
        """The weights of a moving scorer; a frozen one is what the stage began with."""
        return {} if self.recipe.scorer == "frozen" else dict(self.model.state_dict())

    def _foreign(self, groups: Sequence[Group], told: Sequence[Sequence[Thinking]]) -> Iterator[Telling]:
        """In each group, the first closed thought of the next one."""
        for at, group in enumerate(groups if len(groups) > 1 else ()):
            closed = next((one for one in told[(at + 1) % len(told)] if one.closed_by), None)
            if closed is not None:
                end = () if closed.closed_by == "policy" else self.closing
                yield self._telling(group, (*_prefix(group), *self.opening, *closed.thought.tokens, *end))

    def _telling(self, group: Group, story: Sequence[int]) -> Telling:
        suffix = group.task.required_continuation.suffix.tokens
        return Telling(
            as_it_is=suffix_row(story, suffix),
            otherwise=suffix_row((*_prefix(group), *self.opening, *self.closing), suffix),
            behind=len(suffix),
        )

    def _paid(self, group: Group, gains: Sequence[float | None]) -> Group:
        known = [value for value in gains if value is not None]
        least = min([0.0, *known])
        paid = [self._added(*pair, least) for pair in zip(group.scores, gains, strict=True)]
        return replace(group, scores=tuple(paid))

    def _added(self, score: Score, gain: float | None, least: float) -> Score:
        clip, floor = self.recipe.clip, self.recipe.floor
        paid = least if gain is None else gain
        paid = paid if clip is None else max(-clip, min(clip, paid))
        paid = paid if floor is None else max(floor, paid)
        return replace(
            score,
            value=None if score.value is None else score.value + self.recipe.weight * paid,
            parts={**score.parts, **({} if gain is None else {"gain": gain})},
            note=score.note or ("the thought was never closed" if gain is None else ""),
        )


def gain_in(rewards: Sequence[RewardRecipe]) -> GainRecipe | None:
    """The gain among the rewards of a stage, if it is paid."""
    return next((reward for reward in rewards if isinstance(reward, GainRecipe)), None)


def _prefix(group: Group) -> tuple[int, ...]:
    return group.task.required_continuation.prefix.tokens


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
