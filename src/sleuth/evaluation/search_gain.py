"""What a search, or a passage, was worth: how much likelier it made what was written after it.

The question is counterfactual: the story is told again without it, and everything that the policy wrote later is read
under both. A thought that repeats a passage hides its worth for the answer alone, and the first search of two pays
through the query of the second; so the gain counts all later words, and the part that falls on the last turn is told
beside it. The prefix tree computes what the two stories share once.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from transformers import PreTrainedModel

from sleuth.dialects import Dialect
from sleuth.envs.frames import TextFrame
from sleuth.envs.search import result_pieces
from sleuth.evaluation.counterfactual import Telling, read_twice
from sleuth.learn.batch import Row
from sleuth.render import Renderer
from sleuth.types import Passage, Segment, SleuthError, Trajectory

Removed = Literal["search", "passage"]
"""What is taken away: all that a search found, or each of its passages in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One search of a trajectory: the segment that `asked`, and the segments [first, stop) that show what was found,
    tags included."""

    asked: int
    first: int
    stop: int
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The `number`-th look of a trajectory, from 0, and the passage that was taken from it; None is all of them.

    `value` is the log-probability, in nats, of all `tokens` that the policy wrote after the look, with it minus
    without it. `found` is the part of that in words which stand in what was found, `answer` the part in the last turn.
    """

    number: int
    look: Look
    passage: Passage | None
    value: float
    found: float
    answer: float
    tokens: int


def looks(trajectory: Trajectory) -> list[Look]:
    """The searches whose results the policy read, in order."""
    segments = trajectory.segments
    turns = [at for at, segment in enumerate(segments) if segment.author == "policy"]
    return [
        Look(asked=turn, first=turn + 1, stop=following, passages=action.passages)
        for turn, following, action in zip(turns, [*turns[1:], len(segments)], trajectory.actions, strict=True)
        if action.kind == "search" and following < len(segments)
    ]


def gains(
    model: PreTrainedModel,
    renderer: Renderer,
    dialect: Dialect,
    trajectories: Sequence[Trajectory],
    *,
    removed: Removed,
    budget: int,
    temperature: float = 1.0,
) -> list[list[Gain]]:
    """By trajectory, what each of its looks, or each passage of them, was worth to `model`.

    Looks after which nothing is shown have none. Raises SleuthError for a dialect whose results stand in messages of a
    chat template: only a text can be told again without them.
    """
    require_text(dialect)
    asked = [
        [
            (number, look, place)
            for number, look in enumerate(looks(trajectory))
            for place in ([None] if removed == "search" else range(len(look.passages)))
            if look.passages
        ]
        for trajectory in trajectories
    ]  # by trajectory: number, look, and the passage's place
    tellings = [
        Telling(
            as_it_is=_row(trajectory.segments, after=0),
            otherwise=_row_without(trajectory, look, place, dialect, renderer),
            behind=_tokens(trajectory.segments[look.stop :]),
        )
        for trajectory, cases in zip(trajectories, asked, strict=True)
        for _, look, place in cases
    ]
    values = (read.gained for read in read_twice(model, tellings, budget=budget, temperature=temperature))
    return [
        [_gain(trajectory, case, next(values)) for case in cases]
        for trajectory, cases in zip(trajectories, asked, strict=True)
    ]


def require_text(dialect: Dialect) -> None:
    """Raises SleuthError where a story cannot be told again without a passage."""
    if dialect.frame != "text":
        raise SleuthError(
            f"the dialect {dialect.name!r} shows results in messages of a chat template: what a search was worth can "
            "be told in a dialect of plain text alone"
        )


def _gain(trajectory: Trajectory, case: tuple[int, Look, int | None], values: Sequence[float]) -> Gain:
    """From what each token behind the look gained."""
    number, look, place = case
    behind = [token for segment in trajectory.segments[look.stop :] for token in segment.tokens]
    shown = {token for segment in trajectory.segments[look.first : look.stop] for token in segment.tokens}
    last = _tokens(trajectory.segments[_last_turn(trajectory) :])
    return Gain(
        number=number,
        look=look,
        passage=None if place is None else look.passages[place],
        value=sum(values),
        found=sum(nats for token, nats in zip(behind, values, strict=True) if token in shown),
        answer=sum(values[len(values) - last :]),
        tokens=sum(len(segment.tokens) for segment in trajectory.segments[look.stop :] if segment.author == "policy"),
    )


def _tokens(segments: Sequence[Segment]) -> int:
    return sum(len(segment.tokens) for segment in segments)


def _last_turn(trajectory: Trajectory) -> int:
    return max(at for at, segment in enumerate(trajectory.segments) if segment.author == "policy")


def _row_without(trajectory: Trajectory, look: Look, place: int | None, dialect: Dialect, renderer: Renderer) -> Row:
    """The story without one passage of a look, or without any of them, as the environment would have shown it."""
    gone: Container[int] = range(len(look.passages)) if place is None else (place,)
    pieces = tuple(result_pieces(dialect, [look.passages], gone))
    shown = renderer.render_all(TextFrame(dialect).results("", "stop", pieces).pieces)
    before, after = trajectory.segments[: look.first], trajectory.segments[look.stop :]
    return _row([*before, *shown, *after], after=len(before) + len(shown))


def _row(segments: Sequence[Segment], *, after: int) -> Row:
    """All tokens; what the policy wrote in the segments from `after` on is read."""
    return Row(
        tokens=tuple(token for segment in segments for token in segment.tokens),
        trained=tuple(_read(segments, after)),
    )


def _read(segments: Sequence[Segment], after: int) -> Iterator[bool]:
    for at, segment in enumerate(segments):
        for _ in segment.tokens:
            yield at >= after and segment.author == "policy"
