"""The passages that an episode's searches returned, as far as the policy was shown them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from sleuth.answers.match import normalise
from sleuth.types import Passage, Trajectory


def passages_with(answer: str, trajectory: Trajectory) -> Iterator[Passage]:
    """The passages that contain the answer in the part that the policy was shown, in that order."""
    for _, _, passage, shown in shown_passages(trajectory):
        if appears_in(answer, f"{passage.title}\n{passage.text}") and appears_in(answer, shown):
            yield passage


def appears_in(answer: str, text: str) -> bool:
    """Whether the words of the answer occur in a row in the text, both normalised. Stricter than `sub_match`: whole
    words only, and an answer that normalises to nothing appears nowhere."""
    words = normalise(answer)
    return bool(words) and f" {words} " in f" {normalise(text)} "


def shown_part(result: str, reply: str) -> str:
    """As much of the beginning of a result as the reply contains: all of it unless a budget cut it."""
    lengths = range(len(result) + 1)  # if a beginning stands in the reply, so does every shorter one
    shown = bisect_left(lengths, True, key=lambda length: result[:length] not in reply) - 1
    return result[:shown]


def shown_passages(trajectory: Trajectory) -> Iterator[tuple[int, int, Passage, str]]:
    """(search, rank, passage, reply): each passage with its search and its rank, both from 1, and all that the
    environment wrote in reply to that search.

    Actions are matched to policy turns from the end: after a chat template rewrote the history in mid-episode, earlier
    actions have no turn of their own and their results are in the text before the first turn."""
    before, *replies = _replies(trajectory)
    turns = trajectory.action_turns
    shown = [before] * (turns[-1] + 1 - len(replies) if turns else 0) + replies
    search = 0
    for action, turn in zip(trajectory.actions, turns, strict=True):
        reply = shown[turn]
        search += action.kind == "search"
        yield from ((search, rank, passage, reply) for rank, passage in enumerate(action.passages, start=1))


def _replies(trajectory: Trajectory) -> list[str]:
    """The text by other authors than the policy: before its first turn, then after each turn."""
    replies = [""]
    for segment in trajectory.segments:
        if segment.author == "policy":
            replies.append("")
        else:
            replies[-1] += segment.text
    return replies
