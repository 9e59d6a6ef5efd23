"""A text up to a place, a thought there, and, where it is judged by that, how the text goes on (arXiv:2601.21343)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sleuth.types import Piece, Reply, Segment, StopReason, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtLimits:
    """Tokens of a thought and of what is written behind it (0: nothing is), where that ends, and whether a thought that
    fills its budget is closed by the environment."""

    thought_tokens: int
    suffix_tokens: int = 0
    stops: tuple[str, ...] = ()
    inserts: bool = True


class ThoughtEnv:
    """One turn for the thought, and one for the suffix where any is written. The tags are pieces with the tokens under
    which thoughts were taught; the prefix stands there as the tokens that the data has, or as text where it has none.

    A thought that the policy closes keeps the tag as it was sampled. One that it does not close is closed by the
    environment, or, where closing has to be earned, ends the episode with the stop `length`.
    """

    def __init__(self, task: Task, limits: ThoughtLimits, opening: Piece, closing: Piece) -> None:
        self.task = task
        self.limits = limits
        self.opening = opening
        self.closing = closing
        self._thought = True  # it is what the next turn writes

    async def open(self) -> Reply:
        """The prefix and the opening tag."""
        return Reply(
            pieces=(prefix_piece(self.task), self.opening),
            max_tokens=self.limits.thought_tokens,
            stops=(self.closing.text,),
        )

    async def reply(self, text: str, stop: StopReason) -> Reply:
        """The closing tag, where it is missing, and then the suffix's turn or the end."""
        if not self._thought:
            return Reply(done="answered")
        self._thought = False
        closed = text.endswith(self.closing.text)
        if not closed and not self.limits.inserts:
            return Reply(done="length")
        pieces = () if closed else (self.closing,)
        if not self.limits.suffix_tokens:
            return Reply(pieces=pieces, done="answered")
        return Reply(pieces=pieces, max_tokens=self.limits.suffix_tokens, stops=self.limits.stops)


def prefix_piece(task: Task) -> Piece:
    """What a task has before its thought."""
    if task.continuation is None:
        return Piece(text=task.question)
    prefix = task.continuation.prefix
    return Piece(text=prefix.text, author=prefix.author, tokens=prefix.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """An episode of `ThoughtEnv`, taken apart: the tokens of its `story` up to the place behind the thought's closing
    tag, the `thought` as it was sampled, who closed it (None: nobody), and the `suffix`, where one was written.

    `Thinking(story=(5, 9, 2, 7, 3), thought=Segment(author="policy", tokens=(7,), ...), closed_by="env", suffix=None)`.
    """

    story: tuple[int, ...]
    thought: Segment
    closed_by: Literal["policy", "env"] | None
    suffix: Segment | None


def thinking_of(trajectory: Trajectory, closing: str) -> Thinking:
    """`closing` is the closing tag as text."""
    segments = trajectory.segments
    at = next(number for number, segment in enumerate(segments) if segment.author == "policy")
    thought, behind = segments[at], segments[at + 1 :]
    by_policy = thought.text.endswith(closing)
    by_env = not by_policy and bool(behind)
    story, rest = segments[: at + 1 + by_env], behind[by_env:]
    return Thinking(
        story=tuple(token for segment in story for token in segment.tokens),
        thought=thought,
        closed_by="policy" if by_policy else "env" if by_env else None,
        suffix=rest[0] if rest else None,
    )
