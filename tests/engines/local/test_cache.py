from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sleuth.engines.local.cache import INITIAL_CAPACITY, SlotCache
from sleuth.engines.local.slots import SlotPlacement

STATM = Path("/proc/self/statm")


def put(cache, slots, positions, *, fill=None, size=4):
    """Write what `fill` makes, random numbers by default, at (slot, position), two heads of `size` each; the layer."""
    slots, positions = torch.tensor(slots), torch.tensor(positions)
    new = (fill or torch.randn)(2, len(slots), 2, size)
    return cache.write(0, cache.rows(slots, positions, 2), *new), new


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_growing_keeps_the_content_and_zeros_the_rest(kind):
    cache = SlotCache(slots=3, context=1_000)
    (keys, _), new = put(cache, [0, 2, 2], [5, 0, 9], fill=lambda *shape: torch.randn(shape, dtype=kind))
    assert keys.shape == (3, 2, INITIAL_CAPACITY, 4)
    cached = np.array([6, 0, 10])
    cache.reserve(INITIAL_CAPACITY, cached)
    assert cache.layers[0][0] is keys
    cache.reserve(INITIAL_CAPACITY + 1, cached)
    for grown, written in zip(cache.layers[0], new, strict=True):
        assert grown.shape == (3, 2, 2 * INITIAL_CAPACITY, 4)
        assert grown.dtype == kind
        assert torch.equal(grown[[0, 2, 2], :, [5, 0, 9]], written)
        assert grown.count_nonzero() == written.numel()


def test_the_cache_grows_at_most_to_the_context():
    cache = SlotCache(slots=2, context=INITIAL_CAPACITY + 9)
    put(cache, [1], [3])
    cache.reserve(INITIAL_CAPACITY + 2, np.array([0, 4]))
    assert cache.capacity == INITIAL_CAPACITY + 9


@pytest.mark.skipif(not STATM.exists(), reason="this system does not tell what is resident")
def test_reserved_capacity_takes_no_memory_before_it_is_written():
    def resident():
        return int(STATM.read_text().split()[1]) * 4_096

    cache, before = SlotCache(slots=256, context=2_048), resident()
    put(cache, [7], [9], size=64)
    cache.reserve(2_048, np.where(np.arange(256) == 7, 10, 0))
    keys, values = cache.layers[0]
    assert keys.nbytes + values.nbytes == 2 * 256 * 2 * 2_048 * 64 * 4  # half a gigabyte
    assert resident() - before < 50e6


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_prefixes_are_copied_between_slots_in_order(kind):
    cache = SlotCache(slots=4, context=100)
    cache.copy([SlotPlacement(slot=1, source=0, reused=0)])  # nothing was written yet, in any layer
    put(cache, [0, 0, 0, 3], [0, 1, 2, 0], fill=lambda *shape: torch.randn(shape, dtype=kind))
    before = [tensor.clone() for tensor in cache.layers[0]]
    cache.copy(
        [
            SlotPlacement(slot=1, source=0, reused=3),
            SlotPlacement(slot=2, source=1, reused=2),  # of what has just come
            SlotPlacement(slot=3, source=3, reused=1),  # stays
            SlotPlacement(slot=0, source=3, reused=1),  # written over, once it has been given on
        ]
    )
    for tensor, old in zip(cache.layers[0], before, strict=True):
        assert torch.equal(tensor[1], old[0])
        assert torch.equal(tensor[2, :, :2], old[0, :, :2])
        assert tensor[2, :, 2:].count_nonzero() == 0
        assert torch.equal(tensor[3], old[3])
        assert torch.equal(tensor[0, :, 0], old[3, :, 0])
        assert torch.equal(tensor[0, :, 1:], old[0, :, 1:])
