"""What the environment supplied: the passages of the results that the policy was shown."""

from __future__ import annotations

from collections.abc import Iterator

from sleuth.rewards.match import normalise
from sleuth.types import Passage, Trajectory


def stands_in_results(answer: str, trajectory: Trajectory) -> bool:
    """Whether the words of an answer stand in a passage that a search of this episode was answered with.

    Only passages count, not the words around them, and of a passage only what the token budget left to be seen.
    """
    return next(passages_with(answer, trajectory), None) is not None


def passages_with(answer: str, trajectory: Trajectory) -> Iterator[Passage]:
    """The passages in which an answer so stands, in the order in which they were shown."""
    for _, _, passage, shown in shown_passages(trajectory):
        if stands_in(answer, f"{passage.title}\n{passage.text}") and stands_in(answer, shown):
            yield passage


def stands_in(answer: str, text: str) -> bool:
    """Whether the words of the answer stand in the text one after the other, both normalised. Whole words only, and an
    answer of which nothing is left stands nowhere: unlike `sub_match`, this is to be evidence."""
    words = normalise(answer)
    return bool(words) and f" {words} " in f" {normalise(text)} "


def shown_passages(trajectory: Trajectory) -> Iterator[tuple[int, int, Passage, str]]:
    """(search, rank, passage, shown): every passage with the numbers of its search and in it, from 1, and all that the
    environment wrote in answer to that search.

    The last action is what the last turn of the policy was understood to be, and so on backwards; earlier ones, where a
    story is told anew in the middle, stand in what was written before."""
    before, *replies = _replies(trajectory)
    told = len(trajectory.actions) - len(replies)
    search = 0
    for action, reply in zip(trajectory.actions, [before] * told + replies, strict=False):
        search += action.kind == "search"
        yield from ((search, rank, passage, reply) for rank, passage in enumerate(action.passages, start=1))


def _replies(trajectory: Trajectory) -> list[str]:
    """What others than the policy wrote before its first turn, then after each."""
    replies = [""]
    for segment in trajectory.segments:
        if segment.author == "policy":
            replies.append("")
        else:
            replies[-1] += segment.text
    return replies
