from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.engines.local.slots import SlotTable
from sleuth.kernels import decode_attention
from sleuth.kernels.decode_attention import PART, SIBLINGS, SharedSpan, find_shared_spans, pack_parts


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
        patch.setattr(decode_attention, "SPAN_COST", cost)
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


def unpack(packed, rows, pages):
    """The table (B, 2 + n) and the jobs (J, 3)."""
    table, jobs = np.split(packed, [rows * (2 + pages)])
    jobs = jobs.reshape(-1, 3)
    assert jobs[0, 0] == len(jobs) - 1
    return table.reshape(rows, -1), jobs[1:]


@given(draw=draws, page=st.sampled_from([16, 64, 128]), width=st.integers(6, 30))
@settings(max_examples=80, deadline=None)
def test_jobs_read_every_key_of_every_row_once_and_from_pages_that_all_their_rows_hold(draw, page, width):
    each = PART // page
    capacity = width * page
    rows = draw.randint(1, 30)
    pages = np.array(draw.sample(range(rows * width), rows * width), dtype=np.int32).reshape(rows, width)
    lengths = np.array([draw.randint(1, capacity) for _ in range(rows)])
    for row in range(1, rows):  # shares what it can of some row before it
        source = draw.randrange(row)
        shared = draw.randint(0, int(min(lengths[source], lengths[row])) // page)
        pages[row, :shared] = pages[source, :shared]
    table, jobs = unpack(pack_parts(pages, lengths, page), rows, width)
    order, read = table[:, 0], set()
    assert np.array_equal(table[:, 1], lengths[order])
    assert np.array_equal(table[:, 2:], pages[order])
    for part, first, count in jobs.tolist():
        assert 1 <= count <= SIBLINGS
        held = {tuple(table[row, 2:][part * each : (part + 1) * each].tolist()) for row in range(first, first + count)}
        assert len(held) == 1
        assert count == 1 or (part + 1) * PART <= table[first : first + count, 1].min()
        read |= {(int(order[row]), part) for row in range(first, first + count)}
    assert len(read) == jobs[:, 2].sum()
    assert read == {(row, part) for row in range(rows) for part in range(-(-int(lengths[row]) // PART))}


def test_siblings_of_long_prompts_read_few_more_keys_than_there_are():
    """32 prompts of 3,072 tokens with 8 siblings each, whose own tokens are up to 1,000."""
    random, table = np.random.default_rng(0), SlotTable(256, 4_096)
    prompts, tails = random.integers(9, 2**31, (32, 3_072)), random.integers(1, 1_000, 256)
    for number in random.permutation(256):  # siblings are in any slots
        tokens = [*prompts[number // 8], *random.integers(9, 2**31, tails[number])]
        placement = table.place(tokens)
        assert placement is not None
        table.occupy(placement, tokens)
        table.cached[placement.slot] = len(tokens) - 1
    scheduled = table.schedule(0)
    assert scheduled is not None
    slots, _ = scheduled
    lengths = table.cached[slots] + 1
    rows, jobs = unpack(pack_parts(table.pages.pages[slots], lengths, table.pages.page_size), 256, 64)
    read = np.minimum(PART, rows[jobs[:, 1], 1] - jobs[:, 0] * PART).sum()
    distinct = 32 * 3_072 + tails.sum()
    assert distinct <= read <= 1.2 * distinct
    assert read < 0.4 * lengths.sum()
