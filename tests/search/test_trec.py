from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from sleuth.search.trec import run_lines
from sleuth.types import Passage, SleuthError, Task


def task(name: str) -> Task:
    return Task(id=name, question="where?", golden_answers=("Tarn",))


def passages(*scored: tuple[str, float]) -> list[Passage]:
    return [Passage(id=name, title="", text="", score=score) for name, score in scored]


def test_a_run_is_as_trec_eval_reads_it() -> None:
    lines = run_lines(
        [task("q7"), task("q8"), task("q9")], [passages(("17", 11.5), ("4", 2.0)), [], passages(("9", 0.25))], "a-tag"
    )
    assert list(lines) == ["q7 Q0 17 1 11.5 a-tag", "q7 Q0 4 2 2.0 a-tag", "q9 Q0 9 1 0.25 a-tag"]


def test_tied_passages_keep_their_order_for_tools_that_order_by_score_as_float32() -> None:
    nearly = 3.0 + 1e-12  # tied as float32
    for scores in ((nearly, 3.0, 3.0, 2.0), (0.0, 0.0, 0.0), (-1.0, -1.0), (1e-45, 0.0, 0.0)):
        found = passages(*((name, score) for name, score in zip("dcba", scores, strict=False)))
        columns = [line.split() for line in run_lines([task("q")], [found], "tag")]
        written = [np.float32(float(column[4])) for column in columns]
        assert [column[2] for column in columns] == [passage.id for passage in found]
        assert all(first > second for first, second in pairwise(written))
        assert written == pytest.approx(scores, abs=1e-6)


@pytest.mark.parametrize("name", ["a b", "a\tb", " a", "a\n", "a\u2003b"])
def test_an_id_with_white_space_is_refused(name: str) -> None:
    for tasks, found, noun in (([task(name)], [[]], "question"), ([task("q")], [passages((name, 1.0))], "passage")):
        with pytest.raises(SleuthError) as refused:
            list(run_lines(tasks, found, "tag"))
        assert str(refused.value).startswith(f"{noun} {name!r}: white space in an id")
