"""The thought environment: a text's prefix, a thought, and optionally the policy's continuation (arXiv:2601.21343)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sleuth.types import Piece, Reply, Segment, StopReason, Task, Trajectory

if TYPE_CHECKING:
    from sleuth.think.tables import ThoughtEnvRecipe


class ThoughtEnv:
    """One turn for the thought and, if limits allow it, one for the suffix. Opening and closing tags have the tokens
    that the policy was trained on; the prefix has the data's tokens, or is encoded if the data has only text.

    A closing tag that the policy samples stays as sampled. Otherwise the environment appends it or, if it is to be
    "earned", ends the episode with the stop reason `length`.
    """

    def __init__(self, task: Task, limits: ThoughtEnvRecipe, opening: Piece, closing: Piece) -> None:
        self.task = task
        self.limits = limits
        self.opening = opening
        self.closing = closing
        self._is_thought_next = True

    async def open(self) -> Reply:
        """The prefix and the opening tag."""
        return Reply(
            pieces=(prefix_piece(self.task), self.opening),
            max_tokens=self.limits.thought_tokens,
            stops=(self.closing.text,),
        )

    async def reply(self, text: str, stop: StopReason) -> Reply:
        """The closing tag if it is missing, then the suffix's turn or the end."""
        if not self._is_thought_next:
            return Reply(done="answered")
        self._is_thought_next = False
        closed = text.endswith(self.closing.text)
        if not closed and self.limits.close == "earned":
            return Reply(done="length")
        pieces = () if closed else (self.closing,)
        if not self.limits.suffix_tokens:
            return Reply(pieces=pieces, done="answered")
        return Reply(pieces=pieces, max_tokens=self.limits.suffix_tokens, stops=self.limits.stops)


def prefix_piece(task: Task) -> Piece:
    """The task's text before the thought."""
    if task.continuation is None:
        return Piece(text=task.question)
    prefix = task.continuation.prefix
    return Piece(text=prefix.text, author=prefix.author, tokens=prefix.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """The parts of a `ThoughtEnv` episode: all tokens through the thought's closing tag (`story`), the `thought` as
    sampled, who closed it (None: nobody), and the `suffix`, if there is one.

    `Thinking(story=(5, 9, 2, 7, 3), thought=Segment(author="policy", tokens=(7,), ...), closed_by="env", suffix=None)`.
    """

    story: tuple[int, ...]
    thought: Segment
    closed_by: Literal["policy", "env"] | None
    suffix: Segment | None


def thinking_of(trajectory: Trajectory, closing: str) -> Thinking:
    """The parts of a trajectory; `closing` is the closing tag as text."""
    segments = trajectory.segments
    at = next(number for number, segment in enumerate(segments) if segment.author == "policy")
    thought, later = segments[at], segments[at + 1 :]
    by_policy = thought.text.endswith(closing)
    by_env = not by_policy and bool(later)
    story, rest = segments[: at + 1 + by_env], later[by_env:]
    return Thinking(
        story=tuple(token for segment in story for token in segment.tokens),
        thought=thought,
        closed_by="policy" if by_policy else "env" if by_env else None,
        suffix=rest[0] if rest else None,
    )
