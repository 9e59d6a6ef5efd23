"""Rewards thoughts for how much likelier they make the true suffix, to the weights that the stage started from.

    gain(z) = 1/N sum_t [ log p(s_t | x, <think> z </think>, s_<t) - log p(s_t | x, <think></think>, s_<t) ]

in nats a token of the suffix s. Nothing is sampled after a thought, and no judge is called. The baseline is an empty
thought, so that the effect of the tags is no gain. All texts of a group share its prefix, which is computed once; so
does a thought of another group that is tried in its place, whose gain says whether thoughts are about their text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from statistics import fmean

from transformers import PreTrainedModel

from sleuth.evaluation.counterfactual import PairLogprobs, RowPair, pair_logprobs, suffix_row
from sleuth.ranks import ALONE, Ranks
from sleuth.recipe.rewards import RewardFields
from sleuth.render import find_eos_ids
from sleuth.think.env import Thinking, thinking_of
from sleuth.think.suffix_reward import thought_figures
from sleuth.think.tables import GainRecipe
from sleuth.think.thoughts import ThoughtSetting
from sleuth.training.loop import Figures
from sleuth.training.rollout_worker import Hook, HookInputs, shuffled_scores
from sleuth.training.step_metrics import mean_of
from sleuth.types import Group, Piece, Score


class GainScorer:
    """Scores thoughts with `model`, the frozen weights that the stage started from."""

    def __init__(self, recipe: GainRecipe, model: PreTrainedModel, tags: tuple[Piece, Piece]) -> None:
        self.recipe, self.model = recipe, model
        self.opening, self.closing = (tuple(tag.tokens or ()) for tag in tags)
        self.closing_text = tags[1].text

    def score(
        self, groups: Sequence[Group], *, budget: int, ranks: Ranks = ALONE
    ) -> tuple[list[Group], dict[str, float | None]]:
        """The groups with the gain of each thought added to the score it has, and the step's figures of that: the mean
        `gain`, what a foreign thought would have gained (`swapped_gain`), and `blank_nll`, the surprise of a suffix's
        token after an empty thought, which is the most that can be gained. Each of several ranks computes a share.

        A thought that was never closed gets at most the gain of an empty one, and of its worst sibling.
        """
        thoughts = [
            [thinking_of(episode.trajectory, self.closing_text) for episode in group.episodes] for group in groups
        ]
        own = [
            [self._pair(group, one.story) for one in of_group if one.closed_by]
            for group, of_group in zip(groups, thoughts, strict=True)
        ]
        pairs = [[*ours, *other] for ours, other in zip(own, self._foreign(groups, thoughts), strict=True)]

        def scored(mine: Sequence[list[RowPair]], _: int) -> list[list[PairLogprobs]]:
            found = iter(pair_logprobs(self.model, [*chain(*mine)], budget=budget))
            return [[*islice(found, len(of_group))] for of_group in mine]

        by_group = ranks.dealt(pairs, scored)  # whole groups, so that the same thought has the same gain
        known = [one for found, ours in zip(by_group, own, strict=True) for one in found[: len(ours)]]
        swapped = [one for found, ours in zip(by_group, own, strict=True) for one in found[len(ours) :]]
        values = iter([fmean(one.gains) for one in known])
        gains = [[next(values) if one.closed_by else None for one in of_group] for of_group in thoughts]
        return [self._with_gains(*of_group) for of_group in zip(groups, gains, strict=True)], {
            "gain": mean_of([value for of_group in gains for value in of_group if value is not None]),
            "swapped_gain": mean_of([fmean(one.gains) for one in swapped]),
            "blank_nll": mean_of([-fmean(one.counterfactual) for one in known]),
        }

    def _foreign(self, groups: Sequence[Group], thoughts: Sequence[Sequence[Thinking]]) -> Iterator[list[RowPair]]:
        """In each group, the first closed thought of the next one, if there is one."""
        for at, group in enumerate(groups):
            others = thoughts[(at + 1) % len(thoughts)] if len(groups) > 1 else ()
            closed = [one for one in others if one.closed_by][:1]
            ends = [() if one.closed_by == "policy" else self.closing for one in closed]
            stories = [(*self.opening, *one.thought.tokens, *end) for one, end in zip(closed, ends, strict=True)]
            yield [self._pair(group, (*_prefix(group), *story)) for story in stories]

    def _pair(self, group: Group, story: Sequence[int]) -> RowPair:
        suffix = group.task.required_continuation.suffix.tokens
        return RowPair(
            factual=suffix_row(story, suffix),
            counterfactual=suffix_row((*_prefix(group), *self.opening, *self.closing), suffix),
            suffix_len=len(suffix),
        )

    def _with_gains(self, group: Group, gains: Sequence[float | None]) -> Group:
        known = [value for value in gains if value is not None]
        least = min([0.0, *known])
        scores = [self._added(*pair, least) for pair in zip(group.scores, gains, strict=True)]
        return replace(group, scores=tuple(scores))

    def _added(self, score: Score, gain: float | None, least: float) -> Score:
        clip, floor = self.recipe.clip, self.recipe.floor
        added = least if gain is None else gain
        added = added if clip is None else max(-clip, min(clip, added))
        added = added if floor is None else max(floor, added)
        return replace(
            score,
            value=None if score.value is None else score.value + self.recipe.weight * added,
            parts={**score.parts, **({} if gain is None else {"gain": gain})},
            note=score.note or ("the thought was never closed" if gain is None else ""),
        )


class ThoughtRewards(Hook):
    """`env.kind = "thought"`: rewards thoughts for their gain, if the recipe does, and measures how they look."""

    def __init__(self, setting: ThoughtSetting, inputs: HookInputs) -> None:
        worker = inputs.worker
        self.worker, self.setting, self.budget = worker, setting, inputs.budget
        self.ends = find_eos_ids(inputs.model.generation_config, worker.renderer.tokenizer)
        self.shuffles = any(reward.shuffle for reward in worker.stage.reward)
        self.scorer: GainScorer | None = None
        gain = gain_in(worker.stage.reward)
        if gain is not None and inputs.frozen is not None:
            tags = (setting.opening_tag, setting.closing_tag)
            self.scorer = GainScorer(gain, inputs.frozen, tags)

    def score(self, step: int, groups: list[Group]) -> tuple[list[Group], Figures]:
        signs = thought_figures(groups, self.setting.dialect.think, self.ends)
        figures: Figures = {}
        if (scorer := self.scorer) is not None:
            score = partial(scorer.score, groups, ranks=self.worker.context.ranks)
            groups, figures = self.budget.run(lambda tokens: score(budget=tokens))
        if self.shuffles:
            groups = shuffled_scores(groups, (*self.worker.context.key, step))
        return groups, {**figures, **signs}


def gain_in(rewards: Sequence[RewardFields]) -> GainRecipe | None:
    """The gain reward of a stage, if it has one."""
    return next((reward for reward in rewards if isinstance(reward, GainRecipe)), None)


def _prefix(group: Group) -> tuple[int, ...]:
    return group.task.required_continuation.prefix.tokens
