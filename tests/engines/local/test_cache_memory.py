"""What the cache takes of a process's resident memory, at real widths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from playing import place_ragged_groups

from benchmarks.memory import resident_bytes
from sleuth.engines.local.cache import PagedCache
from sleuth.engines.local.slots import SlotTable
from sleuth.kernels.card_pass import PAGE

LAYERS, KV_HEADS, HEAD_SIZE = 2, 2, 128
"""Of Qwen2.5-3B, with fewer layers."""
TOKEN_BYTES = 2 * LAYERS * KV_HEADS * HEAD_SIZE * torch.bfloat16.itemsize


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the resident memory of Linux")
def test_256_ragged_episodes_take_resident_memory_for_their_distinct_tokens():
    """Episodes of 400 to 3,900 tokens in 32 groups, in a cache that has room for all of them at their limit of 4,096:
    memory of pages that nothing was written to is not taken."""
    table = SlotTable(256, 4_096)
    cache = PagedCache(pages=table.pages.total, page_size=PAGE)
    new = torch.randn(4_096, KV_HEADS, HEAD_SIZE, dtype=torch.bfloat16)

    def read():
        scheduled = table.schedule(10_000)
        assert scheduled is not None
        cache.copy(table.pages.take_copies())
        for chunk in scheduled[1]:
            positions = np.arange(chunk.start, chunk.stop)
            pages = table.pages.pages[chunk.slot, positions // PAGE].astype(np.int64)
            rows = cache.rows(torch.from_numpy(pages), torch.from_numpy(positions), KV_HEADS)
            for layer in range(LAYERS):
                cache.write(layer, rows, new[: len(positions)], new[: len(positions)])
            table.cached[chunk.slot] = chunk.stop

    before = resident_bytes()
    distinct = place_ragged_groups(table, read)
    taken, needed = resident_bytes() - before, distinct * TOKEN_BYTES
    print(f"{distinct} distinct tokens, {needed / 1e6:.0f} MB, resident {taken / 1e6:.0f} MB, {taken / needed:.3f}")
    assert 0.9 * needed < taken <= 1.15 * needed
    before = resident_bytes()
    cache.clear()
    assert before - resident_bytes() > 0.95 * needed
