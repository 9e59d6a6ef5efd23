from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.engines.local import paged_attention
from sleuth.engines.local.paged_attention import ChunkwiseAttention, GatheredAttention, tiles_of
from sleuth.kernels import decode_attention
from sleuth.kernels.decode_attention import CompiledDecodeAttention, find_shared_spans

CPU = torch.device("cpu")
SLOTS, PAGE, PAGES_EACH = 10, 16, 10
CAPACITY = PAGE * PAGES_EACH


def decode_attention_of(kind, pages, slots, starts, lengths, levels):
    """Compiled for fp32, by matrix products for the rest."""
    if kind == torch.float32:
        return CompiledDecodeAttention(pages, slots, starts, lengths, levels)
    return GatheredAttention(pages[slots], lengths + 1, PAGE, CPU)


def page_table(draw):
    """A table [SLOTS, PAGES_EACH] in which every slot has pages of its own, in any order."""
    pages = list(range(SLOTS * PAGES_EACH))
    draw.shuffle(pages)
    return np.array(pages, dtype=np.int32).reshape(SLOTS, PAGES_EACH)


def in_pages(dense, pages):
    """[slots, kv_heads, capacity, D] -> [kv_heads, pages, PAGE, D]."""
    slots, heads, _, size = dense.shape
    pool = dense.new_zeros(heads, pages.size, PAGE, size)
    by_page = dense.reshape(slots, heads, -1, PAGE, size).permute(1, 0, 2, 3, 4).flatten(1, 2)
    pool[:, torch.from_numpy(pages.reshape(-1)).long()] = by_page
    return pool


def by_softmax(query, keys, values, slots, lengths, scale):
    """Row by row, in float64."""
    query, keys, values = query.double(), keys.double(), values.double()
    outputs = []
    for row, slot, length in zip(query, slots, lengths, strict=True):
        scores = row @ keys[slot, :, : length + 1].transpose(-1, -2) * scale
        outputs.append(scores.softmax(dim=-1) @ values[slot, :, : length + 1])
    return torch.stack(outputs)


def texts(draw, count):
    """Texts that often begin alike: each goes on from some length of one before it."""
    written = [[]]
    for _ in range(count):
        before = draw.choice(written)
        kept = before[: draw.randint(0, len(before))] if draw.random() < 0.5 else before
        more = draw.choice([1, 3, 40, 70])
        written.append([*kept, *(draw.randrange(3) for _ in range(draw.randint(1, more)))][: CAPACITY - 1])
    return written[1:]


@given(
    draw=st.integers(0, 10**6).map(random.Random),
    cost=st.sampled_from([1, 5, 30]),
    heads=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    sizes=st.sampled_from([(1, 1), (8, 8), (16, 16), (33, 33), (8, 5)]),
    spread=st.sampled_from([0.1, 1.0, 30.0]),
    kind=st.sampled_from([torch.float32, torch.float64]),
    gathered=st.sampled_from([1, 300, 2**19]),
    threads=st.sampled_from([1, 2]),
)
@settings(max_examples=200, deadline=None)
def test_rows_attend_to_all_that_they_wrote_or_share_as_softmax_says(
    draw, cost, heads, sizes, spread, kind, gathered, threads
):
    kv_heads, sharing = heads
    rows = texts(draw, draw.randint(1, SLOTS))
    slots = np.array(sorted(draw.sample(range(SLOTS), len(rows))))
    tokens = np.full((SLOTS, CAPACITY), -1, dtype=np.int32)
    generator = torch.Generator().manual_seed(len(rows) + sizes[0])
    keys, values = (torch.randn(SLOTS, kv_heads, CAPACITY, n, dtype=kind, generator=generator) for n in sizes)
    for number, (slot, row) in enumerate(zip(slots, rows, strict=True)):
        tokens[slot, : len(row)] = row
        for other, before in zip(slots[:number], rows[:number], strict=True):  # the same tokens have the same keys
            common = next((at for at, (a, b) in enumerate(zip(row, before, strict=False)) if a != b), None)
            common = min(len(row), len(before)) if common is None else common
            keys[slot, :, :common], values[slot, :, :common] = keys[other, :, :common], values[other, :, :common]
    query = spread * torch.randn(len(rows), kv_heads, sharing, sizes[0], dtype=kind, generator=generator)
    lengths = np.array([len(row) for row in rows])
    pages = page_table(draw)
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode_attention, "SPAN_COST", cost)
        patch.setattr(paged_attention, "GATHERED_TOKENS", gathered)
        levels, starts = find_shared_spans(tokens, slots, lengths)
        torch.set_num_threads(threads)
        try:
            attention = decode_attention_of(kind, pages, slots, starts, lengths, levels)
            output = attention.attend(query, in_pages(keys, pages), in_pages(values, pages), 0.3)
        finally:
            torch.set_num_threads(before)
    # Scores are kept in fp32, which holds some hundreds to 1e-5, and a share is e to the power of one.
    expected = by_softmax(query, keys, values, slots, lengths, 0.3)
    torch.testing.assert_close(output.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes", [(8, 8), (8, 5)])
@pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 40), (16, 17), (31, 97)])
def test_a_chunk_attends_causally_to_the_pages_of_its_slot(sizes, start, stop):
    pages = page_table(random.Random(start))
    keys, values = (torch.randn(SLOTS, 2, CAPACITY, n) for n in sizes)
    query = torch.randn(stop - start, 2, 3, sizes[0])
    expected = by_softmax(query, keys, values, [4] * (stop - start), range(start, stop), 0.3)
    attention = ChunkwiseAttention(pages[[4]], np.array([start]), np.array([stop]), PAGE, CPU)
    pool = [in_pages(dense, pages) for dense in (keys, values)]
    output = attention.attend(query, *pool, 0.3)
    torch.testing.assert_close(output.double(), expected, rtol=1e-4, atol=1e-5)  # a softmax in two parts, fp32
    last = attention.for_last_tokens().attend(query[-1:], *pool, 0.3)
    torch.testing.assert_close(last.double(), expected[-1:], rtol=1e-4, atol=1e-5)


def test_each_token_of_the_chunks_is_in_one_tile():
    starts, stops = np.array([0, 30, 5, 100]), np.array([1, 95, 37, 164])
    tiles = tiles_of(starts, stops, 32)
    positions = [*map(np.arange, starts, stops)]
    tokens = [(chunk, position) for chunk, ones in enumerate(positions) for position in ones.tolist()]
    covered = {}
    for chunk, first, position, count in tiles.tolist():
        assert 1 <= count <= 32
        covered |= {first + at: (chunk, position + at) for at in range(count)}
    assert [covered[at] for at in range(len(tokens))] == tokens
    assert len(covered) == sum(count for *_, count in tiles.tolist())


def one_page(slots, starts, ends):
    """Rows that share nothing and read the keys from `starts` up to `ends` of the one page of their slot."""
    pages = np.arange(max(slots) + 1, dtype=np.int32)[:, None]
    return CompiledDecodeAttention(pages, np.array(slots), np.array(starts), np.array(ends) - 1, [])


def test_a_key_of_another_row_or_page_is_never_read():
    query = torch.randn(2, 1, 2, 8)
    keys, values = torch.full((2, 1, 4, 128, 8), torch.nan)
    keys[:, [0, 3], 2:6], values[:, [0, 3], 2:6] = torch.randn(2, 1, 2, 4, 8)
    assert one_page([0, 3], [2, 2], [6, 6]).attend(query, keys, values, 1.0).isfinite().all()


@pytest.mark.parametrize("count", [40, 70, 128])
def test_nan_keys_give_nan_outputs(count):
    query, clean = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 128, 8)
    for at in range(count):  # in a vector and behind the last
        keys = clean.clone()
        keys[0, 0, at, 2] = torch.nan
        assert one_page([0], [0], [count]).attend(query, keys, clean, 1.0).isnan().all()


def test_scores_far_apart_do_not_overflow():
    query, keys = torch.tensor([[[[1e4]]]]), torch.zeros(1, 1, 128, 1)
    keys[0, 0, :2] = torch.tensor([[1.0], [-1.0]])
    assert one_page([0], [0], [2]).attend(query, keys, keys.clone(), 1.0).item() == 1


def test_any_number_of_threads_gives_the_same_bytes():
    query, keys, values = torch.randn(6, 2, 2, 16), torch.randn(2, 6, 128, 16), torch.randn(2, 6, 128, 16)
    told = []
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        told.append(one_page(range(6), [0] * 6, range(85, 91)).attend(query, keys, values, 1.0))
    torch.set_num_threads(before)
    assert torch.equal(*told)
