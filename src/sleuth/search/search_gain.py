"""The gain of a search or a passage: how much likelier it made everything that the policy wrote after it.

The trajectory is rendered again without it, and all later tokens of the policy are scored in both. All later turns
count, because a thought may repeat a passage before the answer uses it, and the first search of two acts through the
query of the second. The part of the gain that falls on the last turn is reported too.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Literal

from transformers import PreTrainedModel

from sleuth.dialect import Dialect
from sleuth.episodes.frames import TextFrame
from sleuth.evaluation.counterfactual import RowPair, pair_logprobs
from sleuth.learn.batch import Row
from sleuth.render import Renderer
from sleuth.search.env import result_pieces
from sleuth.types import Passage, Segment, SleuthError, Trajectory

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
    last = _count_tokens(trajectory.segments[_last_turn(trajectory) :])
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


def _last_turn(trajectory: Trajectory) -> int:
    return max(at for at, segment in enumerate(trajectory.segments) if segment.author == "policy")


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
