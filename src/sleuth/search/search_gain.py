"""The gain of a search or a passage: how much likelier it made everything that the policy wrote after it.

The trajectory is rendered again without it, and all later tokens of the policy are scored in both. All later turns
count, because a thought may repeat a passage before the answer uses it, and the first search of two acts through the
query of the second. The part of the gain that falls on the last turn is reported too.

It is measured by `sleuth probe`, and becomes credit for single searches.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import ClassVar, Literal

from transformers import PreTrainedModel

from sleuth.dialect import Dialect
from sleuth.episodes.frames import TextFrame
from sleuth.evaluation.counterfactual import RowPair, pair_logprobs
from sleuth.learn.batch import Row
from sleuth.recipe.grpo import CreditFields
from sleuth.render import Renderer
from sleuth.search.env import result_pieces
from sleuth.training.loop import Figures
from sleuth.training.rollout_worker import Hook, HookInputs
from sleuth.types import Credit, Episode, Group, Passage, Score, Segment, SleuthError, Trajectory

Removed = Literal["search", "passage"]
"""What is removed: all passages of a search, or each of them in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpan:
    """One search of a trajectory, in indices of segments: the `query` was written in one, and [first, stop) show the
    results, tags included."""

    query: int
    first: int
    stop: int
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchGain:
    """The gain of search `number` of a trajectory, from 0, or of one `passage` of it (None: of all its passages).

    `value` is the log-probability, in nats, of all `tokens` that the policy wrote after the results, with them minus
    without. `retrieved` is the part from tokens that also occur in the results, `answer` the part from the last turn.
    """

    number: int
    search: SearchSpan
    passage: Passage | None
    value: float
    retrieved: float
    answer: float
    tokens: int


def search_spans(trajectory: Trajectory) -> list[SearchSpan]:
    """The searches whose results the trajectory shows, in order."""
    segments = trajectory.segments
    turns = [at for at, segment in enumerate(segments) if segment.author == "policy"]
    return [
        SearchSpan(query=turn, first=turn + 1, stop=following, passages=action.passages)
        for turn, following, action in zip(turns, [*turns[1:], len(segments)], trajectory.actions, strict=True)
        if action.kind == "search" and following < len(segments)
    ]


def search_gains(
    model: PreTrainedModel,
    renderer: Renderer,
    dialect: Dialect,
    trajectories: Sequence[Trajectory],
    *,
    removed: Removed,
    budget: int,
    temperature: float = 1.0,
) -> list[list[SearchGain]]:
    """By trajectory, the gain of each of its searches, or of each of their passages, to `model`. A search without
    results has none. Raises SleuthError for a dialect of chat messages, as `require_text_dialect`."""
    require_text_dialect(dialect)
    cases = [
        [
            (number, search, at)
            for number, search in enumerate(search_spans(trajectory))
            for at in ([None] if removed == "search" else range(len(search.passages)))
            if search.passages
        ]
        for trajectory in trajectories
    ]  # by trajectory: the number, the search, and the passage's index
    pairs = [
        RowPair(
            factual=_row(trajectory.segments, after=0),
            counterfactual=_row_without(trajectory, search, at, dialect, renderer),
            suffix_len=_count_tokens(trajectory.segments[search.stop :]),
        )
        for trajectory, of_trajectory in zip(trajectories, cases, strict=True)
        for _, search, at in of_trajectory
    ]
    gains = (pair.gains for pair in pair_logprobs(model, pairs, budget=budget, temperature=temperature))
    return [
        [_search_gain(trajectory, case, next(gains)) for case in of_trajectory]
        for trajectory, of_trajectory in zip(trajectories, cases, strict=True)
    ]


def require_text_dialect(dialect: Dialect) -> None:
    """Raises SleuthError for a dialect whose results are chat messages: only plain text can be rendered again without
    a passage."""
    if dialect.frame != "text":
        raise SleuthError(
            f"the dialect {dialect.name!r} shows results in messages of a chat template; the gain of a search needs a "
            "dialect of plain text"
        )


def _search_gain(
    trajectory: Trajectory, case: tuple[int, SearchSpan, int | None], gains: Sequence[float]
) -> SearchGain:
    """The gain of a case, from the gain of each token after the results."""
    number, search, at = case
    later = [token for segment in trajectory.segments[search.stop :] for token in segment.tokens]
    shown = {token for segment in trajectory.segments[search.first : search.stop] for token in segment.tokens}
    last_turn = max(at for at, segment in enumerate(trajectory.segments) if segment.author == "policy")
    last = _count_tokens(trajectory.segments[last_turn:])
    return SearchGain(
        number=number,
        search=search,
        passage=None if at is None else search.passages[at],
        value=sum(gains),
        retrieved=sum(nats for token, nats in zip(later, gains, strict=True) if token in shown),
        answer=sum(gains[len(gains) - last :]),
        tokens=_count_tokens([segment for segment in trajectory.segments[search.stop :] if segment.author == "policy"]),
    )


def _count_tokens(segments: Sequence[Segment]) -> int:
    return sum(len(segment.tokens) for segment in segments)


def _row_without(
    trajectory: Trajectory, search: SearchSpan, at: int | None, dialect: Dialect, renderer: Renderer
) -> Row:
    """The trajectory without one passage of a search, or without all of them, as the environment would show it."""
    removed: Container[int] = range(len(search.passages)) if at is None else (at,)
    pieces = tuple(result_pieces(dialect, [search.passages], removed))
    shown = renderer.render_all(TextFrame(dialect).results("", "stop", pieces).pieces)
    before, after = trajectory.segments[: search.first], trajectory.segments[search.stop :]
    return _row([*before, *shown, *after], after=len(before) + len(shown))


def _row(segments: Sequence[Segment], *, after: int) -> Row:
    """A row of all tokens, of which those are scored that the policy wrote in the segments from `after` on."""
    return Row(
        tokens=tuple(token for segment in segments for token in segment.tokens),
        trained=tuple(
            at >= after and segment.author == "policy" for at, segment in enumerate(segments) for _ in segment.tokens
        ),
    )


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
        found = ranks.dealt(episodes, lambda mine, _: self.budget.run(lambda budget: self.spans(mine, budget)))
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
