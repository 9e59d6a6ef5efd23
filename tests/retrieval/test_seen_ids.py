from __future__ import annotations

import random

import pytest

from sleuth.retrieval import corpus
from sleuth.retrieval.corpus import SeenIds


@pytest.mark.parametrize("first", [0, 1])
def test_ids_that_count_up_take_no_memory(first: int) -> None:
    seen = SeenIds()
    assert all(seen.add(str(number)) for number in range(first, 5000))
    assert not seen._pending
    assert not any(seen.add(str(number)) for number in range(first, 5000))


def test_every_id_is_new_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "MAX_PENDING_IDS", 16)
    ids = [
        *map(str, range(40)),
        "007",
        "7 ",
        "é",
        "-1",
        "100",
        "99",
        "9" * 5000,
        *(f"w{number}" for number in range(100)),
    ]
    for order in range(5):
        random.Random(order).shuffle(ids)
        seen = SeenIds()
        assert [seen.add(i) for i in ids] == [True] * len(ids)
        assert [seen.add(i) for i in ids] == [False] * len(ids)
