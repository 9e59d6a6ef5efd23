from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.kernels import shared_spans
from sleuth.kernels.shared_spans import SharedSpan, find_shared_spans


def table_of(rows: list[list[int]], width: int) -> tuple[np.ndarray, np.ndarray]:
    """`tokens` [slots, context] and lengths (B)."""
    tokens = np.full((len(rows), width), -1, dtype=np.int32)
    for slot, row in enumerate(rows):
        tokens[slot, : len(row)] = row
    return tokens, np.array([len(row) for row in rows])


def test_siblings_read_their_common_prompt_once():
    prompt = list(range(600))
    tokens, lengths = table_of([[*prompt, 1], [*prompt, 2], [*prompt, 3], [9]], 700)
    levels, starts = find_shared_spans(tokens, np.arange(4), lengths)
    assert levels == [[SharedSpan(rows=[0, 1, 2], slot=0, keys=slice(0, 600))]]
    assert starts.tolist() == [600, 600, 600, 0]


def test_a_short_common_beginning_is_not_worth_a_call():
    tokens, lengths = table_of([[1, 2, 3, 4], [1, 2, 3, 5]], 10)
    assert find_shared_spans(tokens, np.arange(2), lengths)[0] == []


draws = st.integers(0, 10**6).map(random.Random)


@given(draw=draws, cost=st.sampled_from([1, 5, 30]))
@settings(max_examples=80, deadline=None)
def test_shared_spans_read_every_key_of_every_row_once(draw, cost):
    rows = [[draw.randrange(2) for _ in range(draw.randint(1, 12))] for _ in range(draw.randint(1, 8))]
    slots = np.array(sorted(draw.sample(range(12), len(rows))))
    tokens, lengths = table_of([[]] * 12, 13)
    for slot, row in zip(slots, rows, strict=True):
        tokens[slot, : len(row)] = row
    lengths = np.array([len(row) for row in rows])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_spans, "SPAN_COST", cost)
        levels, starts = find_shared_spans(tokens, slots, lengths)
    read = [0] * len(rows)
    for level in levels:
        assert len({row for span in level for row in span.rows}) == sum(len(span.rows) for span in level)
        for span in level:
            for row in span.rows:
                assert span.keys.start == read[row]
                assert tokens[span.slot, span.keys].tolist() == rows[row][span.keys]
                read[row] = span.keys.stop
    assert read == starts.tolist()
