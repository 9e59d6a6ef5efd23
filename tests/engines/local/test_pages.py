from __future__ import annotations

import random
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.engines.local.cache import PageTable
from sleuth.engines.local.slots import SlotTable


def held(table: PageTable, slot: int) -> list[int]:
    return table.pages[slot, : table.held[slot]].tolist()


@given(draw=st.integers(0, 10**6).map(random.Random), pages=st.integers(8, 24))
@settings(max_examples=150, deadline=None)
def test_every_slot_reads_its_own_tokens_whatever_is_shared_copied_evicted_or_preempted(draw, pages):
    """A pool of random size holds what the tables say: a model of the cache is written token by token."""
    size, context, slots = 4, 32, 6
    table = SlotTable(slots, context, page_size=size, pages=pages)
    memory = np.full((pages, size), -1)
    for _ in range(60):
        list(table.take_ready())
        if draw.random() < 0.5:
            length = draw.randint(1, context - 1)
            prompt = [0] * draw.randint(0, length) + [draw.randrange(2) for _ in range(context)]
            if placement := table.place(prompt[:length]):
                table.occupy(placement, prompt[:length])
        busy = np.flatnonzero(table.busy).tolist()
        if not busy:
            continue
        while (scheduled := table.schedule(draw.choice([3, 100]))) is None:
            victim = draw.choice(np.flatnonzero(table.busy).tolist())
            table.release(victim)
            table.evict(victim)
            list(table.take_ready())
            if not table.busy.any():
                break
        if scheduled is None:
            continue
        for source, target in table.pages.take_copies():
            memory[target] = memory[source]
        decoding, chunks = scheduled
        spans = [(int(slot), int(table.cached[slot]), int(table.cached[slot]) + 1) for slot in decoding]
        for slot, start, stop in spans + [(chunk.slot, chunk.start, chunk.stop) for chunk in chunks]:
            for position in range(start, stop):
                memory[table.pages.pages[slot, position // size], position % size] = table.tokens[slot, position]
            table.cached[slot] = stop
        for slot in range(slots):
            read = [memory[table.pages.pages[slot, at // size], at % size] for at in range(table.cached[slot])]
            assert read == table.tokens[slot, : table.cached[slot]].tolist()
        for slot in np.flatnonzero(table.busy & (table.cached == table.length)).tolist():
            if draw.random() < 0.3 or table.length[slot] == context:
                table.release(slot)
            else:
                table.append(np.array([slot]), np.array([draw.randrange(2)]))
        holders = Counter(page for slot in range(slots) for page in held(table.pages, slot))
        assert table.pages.free == pages - len(holders)
    for slot in range(slots):
        if table.busy[slot]:
            table.release(slot)
        table.evict(slot)
    assert table.pages.free == pages
