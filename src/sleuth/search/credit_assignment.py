"""Credit for parts of episodes, such as single searches, by how much likelier they made what the policy wrote with
them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import ClassVar

from sleuth.recipe.grpo import CreditFields
from sleuth.search.search_gain import search_gains
from sleuth.training.loop import Figures
from sleuth.training.rollout_worker import Hook, HookInputs
from sleuth.types import Credit, Episode, Group, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditedSpan:
    """The gain in nats of a search or a citation. Its tokens are those of a segment from `begin` to before `end` (None:
    to the last); the segment's first `thought` tokens are the thought from which its claims were written."""

    gain: float
    segment: int
    begin: int = 0
    end: int | None = None
    thought: int = 0

    def credit(self, recipe: CreditFields) -> Credit:
        """The bonus for a gain above the margin, else the penalty."""
        value = recipe.bonus if self.gain > recipe.margin else -recipe.penalty
        return Credit(segment=self.segment, value=value, begin=self.begin, end=self.end)


class CreditAssignment(Hook):
    """`[stage.credit]`: adds credit to the tokens of single parts of episodes."""

    idle: ClassVar[str]
    """The figure of the share of the parts that gained no more than the margin."""

    def __init__(self, recipe: CreditFields, inputs: HookInputs) -> None:
        self.recipe, self.worker, self.model, self.budget = recipe, inputs.worker, inputs.model, inputs.budget

    @abstractmethod
    def counts(self, score: Score) -> bool:
        """Whether an episode with this score gets credit."""

    @abstractmethod
    def spans(self, episodes: Sequence[Episode], budget: int) -> list[list[CreditedSpan]]:
        """The parts of each episode, computed with so many tokens at once."""

    def score(self, step: int, groups: list[Group]) -> tuple[list[Group], Figures]:
        """The groups with the credits of their episodes, and the step's figures of them: the mean gain, and the share
        that gained no more than the margin. Each rank computes a share of the episodes."""
        ranks = self.worker.context.ranks
        episodes = [
            episode
            for group in groups
            for episode, score in zip(group.episodes, group.scores, strict=True)
            if self.counts(score)
        ]
        mine = episodes[ranks.share(len(episodes))]
        found = ranks.all_gather(self.budget.run(lambda budget: self.spans(mine, budget)))
        credits = {id(episode): self._credits(spans) for episode, spans in zip(episodes, found, strict=True)}

        def with_credits(episode: Episode, score: Score) -> Score:
            return replace(score, credits=(*score.credits, *credits.get(id(episode), ())))

        credited = [replace(group, scores=tuple(map(with_credits, group.episodes, group.scores))) for group in groups]
        values = [span.gain for spans in found for span in spans]
        if not values:
            return credited, {}
        idle = fmean(float(value <= self.recipe.margin) for value in values)
        return credited, {self.recipe.kind: fmean(values), self.idle: idle}

    def _credits(self, spans: Sequence[CreditedSpan]) -> tuple[Credit, ...]:
        """One for each search or claim. The thought before the claims gets their mean: there the policy chose what to
        cite."""
        credits = tuple(span.credit(self.recipe) for span in spans)
        if not any(span.thought for span in spans):
            return credits
        mean = fmean(credit.value for credit in credits)
        return *credits, Credit(segment=spans[0].segment, value=mean, end=spans[0].thought)


class SearchCredit(CreditAssignment):
    """Credit for searches, only in episodes with the right answer: what other searches made likelier may be wrong."""

    idle = "idle_searches"

    def counts(self, score: Score) -> bool:
        return score.parts.get("em") == 1

    def spans(self, episodes: Sequence[Episode], budget: int) -> list[list[CreditedSpan]]:
        """By the gain of words that were found. Not of all words: a policy that usually searches twice is as surprised
        by its next step after a single search as by a missing fact."""
        found = search_gains(
            self.model,
            self.worker.renderer,
            self.worker.setting.dialect,
            [episode.trajectory for episode in episodes],
            removed="search",
            budget=budget,
            temperature=self.worker.stage.sampling.temperature,
        )
        return [[CreditedSpan(gain=gain.retrieved, segment=gain.search.query) for gain in gains] for gains in found]
