from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.engines import plan
from sleuth.engines.own_keys import OwnKeys, compiled, is_compiled_for
from sleuth.engines.windows import Windows

CPU = torch.device("cpu")


def own_keys(kind, slots, begins, lengths):
    """By the kernel for fp32, in windows for the rest."""
    return OwnKeys(slots, begins, lengths) if is_compiled_for(CPU, kind) else Windows(slots, begins, lengths, CPU, kind)


def by_softmax(query, keys, values, bounds, scale):
    """Row by row, in float64."""
    query, keys, values = query.double(), keys.double(), values.double()
    outputs, weights = [], []
    for row, (slot, begin, length) in zip(query, bounds, strict=True):
        scores = row @ keys[slot, :, begin : length + 1].transpose(-1, -2) * scale
        outputs.append(scores.softmax(dim=-1) @ values[slot, :, begin : length + 1])
        weights.append(scores.logsumexp(dim=-1))
    return torch.stack(outputs), torch.stack(weights)


@given(
    bounds=st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 30), st.integers(0, 20)), min_size=1),
    heads=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    sizes=st.sampled_from([(1, 1), (8, 8), (16, 16), (33, 33), (8, 5)]),
    spread=st.sampled_from([0.1, 1.0, 30.0]),
    kind=st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=150, deadline=None)
def test_rows_with_keys_of_their_own_attend_to_them_as_softmax_says(bounds, heads, sizes, spread, kind):
    kv_heads, sharing = heads
    rows = [(slot, begin, begin + more) for slot, (begin, more) in sorted(bounds.items())]
    draw = torch.Generator().manual_seed(len(rows) + sizes[0])
    query = spread * torch.randn(len(rows), kv_heads, sharing, sizes[0], dtype=kind, generator=draw)
    keys = torch.randn(10, kv_heads, 51, sizes[0], dtype=kind, generator=draw)
    values = torch.randn(10, kv_heads, 51, sizes[1], dtype=kind, generator=draw)
    slots, begins, lengths = (np.array(column) for column in zip(*rows, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "CALL", 20)
        output, weight = own_keys(kind, slots, begins, lengths).attend(query, keys, values, 0.3)
    expected = by_softmax(query, keys, values, rows, 0.3)
    # Scores are kept in fp32, which holds some hundreds to 1e-5, and a share is e to the power of one.
    torch.testing.assert_close(output.double(), expected[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(weight.double(), expected[1], rtol=1e-4, atol=1e-4)


def test_a_key_of_another_row_or_slot_is_never_read():
    query = torch.randn(2, 1, 2, 8)
    keys, values = torch.full((2, 4, 1, 9, 8), torch.nan)
    keys[[0, 3], :, 2:6], values[[0, 3], :, 2:6] = torch.randn(2, 2, 1, 4, 8)
    output, weight = OwnKeys(np.array([0, 3]), np.array([2, 2]), np.array([5, 5])).attend(query, keys, values, 1.0)
    assert output.isfinite().all()
    assert weight.isfinite().all()


def test_what_is_no_number_stays_none():
    query, clean = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 40, 8)
    for at in range(40):  # in a vector and behind the last
        keys = clean.clone()
        keys[0, 0, at, 2] = torch.nan
        output, weight = OwnKeys(np.array([0]), np.array([0]), np.array([39])).attend(query, keys, clean, 1.0)
        assert output.isnan().all()
        assert weight.isnan().all()


def test_scores_far_apart_neither_overflow_nor_leave_a_share_to_the_lesser():
    query, keys = torch.tensor([[[[1e4]]]]), torch.tensor([[[[1.0], [-1.0]]]])
    output, weight = OwnKeys(np.array([0]), np.array([0]), np.array([1])).attend(query, keys, keys.clone(), 1.0)
    assert output.item() == 1
    assert weight.item() == pytest.approx(1e4)


def test_where_nothing_can_be_left_for_the_next_process_it_is_compiled_all_the_same():
    made = {}
    exec("def twice(number):\n    return 2 * number", made)  # of no file, so there is no folder either
    assert compiled(made["twice"])(4) == 8
