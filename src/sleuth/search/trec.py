"""Runs in the format of TREC, which trec_eval, pytrec_eval, ir_measures and ranx read: what a search found.

One line for each passage, `QUESTION Q0 PASSAGE RANK SCORE TAG`, such as `q7 Q0 17 1 11.342187 sleuth-bm25`. A question
for which nothing was found has no line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sleuth.types import Passage, SleuthError, Task


def run_lines(tasks: Sequence[Task], found: Sequence[Sequence[Passage]], tag: str) -> Iterator[str]:
    """The lines of a run, from the passages of each task, best first.

    The tools order by score alone, as float32, and each breaks ties in its own way; so a score that is not lower than
    the one before is written as the next lower number. Raises SleuthError for an id with white space.
    """
    for task, passages in zip(tasks, found, strict=True):
        _require_word(task.id, "question")
        last = np.float32(np.inf)
        for rank, passage in enumerate(passages, start=1):
            _require_word(passage.id, "passage")
            last = min(np.float32(passage.score), np.nextafter(last, np.float32(-np.inf)))
            yield f"{task.id} Q0 {passage.id} {rank} {last!s} {tag}"


def _require_word(name: str, noun: str) -> None:
    if name.split() != [name]:
        raise SleuthError(f"{noun} {name!r}: white space in an id, and that separates the columns of a TREC run")
