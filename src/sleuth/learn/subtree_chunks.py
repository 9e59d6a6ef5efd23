"""A prefix tree sawn into limbs, which are computed one after the other: no more of it is in memory at once than one
limb and the path that it grows out of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtreeChunk:
    """The tokens [first, stop) of a tree. What else grows out of the last of them lies behind, up to `end`: nothing
    where that is `stop`."""

    first: int
    stop: int
    end: int


def subtree_chunks(ends: Tensor, budget: int) -> Iterator[SubtreeChunk]:
    """The tree whose subtrees end at `ends` (N), in its order, depth-first.

    A limb and all that it grows out of are at most `budget` tokens together, or it is a single path. Neighbouring
    subtrees share a limb where they fit, in limbs of about the same size.
    """
    ends_of = ends.tolist()
    forests = [(0, len(ends_of), budget)]  # stretches of whole subtrees that grow out of one token, and room for them
    while forests:
        first, stop, room = forests.pop()
        end = _fitting(ends_of, first, stop, room)
        if end < stop:
            forests.append((end, stop, room))
        trunk = end
        if end - first > room:
            trunk = next((at for at in range(first, end) if ends_of[at] != end), end)
        yield SubtreeChunk(first=first, stop=trunk, end=end)
        if trunk < end:
            forests.append((trunk, end, room - (trunk - first)))


def _fitting(ends: Sequence[int], first: int, stop: int, room: int) -> int:
    """Where the next limb of a forest ends: as many limbs as must be, each with its share of the tokens. One subtree at
    least."""
    share = (stop - first) / _least_chunks(ends, first, stop, room)
    end = ends[first]
    while end < stop and ends[end] - first <= room and (end + ends[end]) / 2 - first <= share:
        end = ends[end]
    return end


def _least_chunks(ends: Sequence[int], first: int, stop: int, room: int) -> int:
    count, begin, end = 1, first, ends[first]
    while end < stop:
        if ends[end] - begin > room:
            count, begin = count + 1, end
        end = ends[end]
    return count
