"""Check of decode steps that begin before the host has read the last one, and of those captured as CUDA graphs: the
same tokens, no wait of the host, fewer launches."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.checks import Check
from benchmarks.gpu.profiled import launches
from benchmarks.gpu.sampler import (
    PROFILED,
    SIBLINGS,
    Tokens,
    Written,
    clocked,
    compare,
    continue_all,
    drawn,
    fitting,
    open_engine,
    warm_up,
)
from sleuth.engines.local import decode_graphs
from sleuth.engines.local.engine import LocalEngine

GRAPH_LAUNCHES = 100
"""Of a step that is one graph: the graph, and what carries its inputs and results."""
SAME = 0.99
"""Share of the tokens that are those of the same batches. A graph's rows are filled up, and prompts are read in other
steps: where another number of rows is multiplied together, products round differently, and a text goes on differently
after its first other token. A replayed step has the numbers of the same step launched kernel by kernel."""
WAYS = {"waiting": (False, False), "ahead": (True, False), "held": (True, True), "graphs": (True, True)}
"""Whether steps begin ahead, and whether they are scheduled as graphs are; those that are held are launched kernel by
kernel all the same."""


def graphs(check: Check) -> None:
    """The same requests by each way."""
    draw, scale = random.Random("graphs"), check.scale
    requests = [
        prompt for _ in range(scale.requests // SIBLINGS) for prompt in [drawn(check, draw, scale.prompt)] * SIBLINGS
    ]
    written_by: dict[str, list[Written]] = {}
    speeds: dict[str, float] = {}
    model, tokenizer = scale.model(check.device), scale.tokenizer()
    for way, (lookahead, as_graphs) in WAYS.items():
        steps = decode_graphs.STEPS_BEFORE_CAPTURE if way == "graphs" else sys.maxsize
        with patch.object(decode_graphs, "STEPS_BEFORE_CAPTURE", steps):
            engine = open_engine(check, model, tokenizer, lookahead=lookahead, graphs=as_graphs)
            _decode(check, way, engine, requests, written_by, speeds)
            engine.sleep()
    for way, beside, bar in (("ahead", "waiting", SAME), ("held", "waiting", None), ("graphs", "held", None)):
        if way in written_by and beside in written_by:
            share = same_share(written_by[way], written_by[beside])
            check.found(f"{way}: tokens of {beside}, share", share, at_least=bar)
            check.found(f"{way}: until texts differ", same_share_so_far(written_by[way], written_by[beside]))
    if "graphs" in written_by:
        compare(check, "graphs: ", model, written_by["graphs"])
        check.found("graphs over ahead", speeds["graphs"] / speeds["ahead"], at_least=check.speed_bar(1))


def _decode(
    check: Check,
    way: str,
    engine: LocalEngine,
    requests: Sequence[Tokens],
    written_by: dict[str, list[Written]],
    speeds: dict[str, float],
) -> None:
    """The requests by one way: what was written, and how fast; nothing if it cannot be had here."""
    scale = check.scale
    fit = fitting(requests, engine, scale.decode + 4 * PROFILED + 2)
    written = [Written(prompt=prompt) for prompt in requests[:fit]]
    warm_up(engine, scale.longest)
    written, _ = continue_all(engine, written, 1)  # reads all prompts
    written, _ = continue_all(engine, written, 2 * PROFILED)  # captures
    if way == "graphs":
        problem = None if engine._graphs is None else engine._graphs.problem
        if not check.on_card:
            check.skip(f"CUDA graphs: there is no card, and {problem}")
            return
        check.found("graphs: captured", 0 if engine._graphs is None else engine._graphs.captured, at_least=1)
        if problem is not None:
            check.skip(f"CUDA graphs: {problem}")
            return
        with _replays_compared(engine) as differences:
            written, _ = continue_all(engine, written, 1)
        check.found("graphs: log p beside launched, most", max(differences), "nats", at_most=0)
    (written, _), seconds = clocked(check, lambda: continue_all(engine, written, scale.decode))
    speeds[way] = len(written) * scale.decode / seconds
    check.found(f"{way}: {len(written)} decoded", speeds[way], "tokens/s")
    written_by[way] = _profiled(check, way, engine, written)


@contextmanager
def _replays_compared(engine: LocalEngine) -> Iterator[list[float]]:
    """Computes each replayed step again, launched kernel by kernel from the same buffers; fills a list with how far the
    results are apart."""
    graphs, differences = engine._graphs, list[float]()
    assert graphs is not None
    before = graphs.decode

    def decode(table: Any, slots: Any, state: Any, cache: Any, by_slot: torch.Tensor) -> torch.Tensor | None:
        sampled = before(table, slots, state, cache, by_slot)
        for buffers, _ in graphs._replays.values():
            if sampled is not None and buffers.rows >= len(slots):
                replayed = buffers.sampled.clone()
                decode_graphs.decode_step(engine._logits, cache, buffers, by_slot)
                differences.append(float((buffers.sampled - replayed).abs().max()))
                break
        return sampled

    graphs.decode = decode  # type: ignore[method-assign]
    try:
        yield differences
    finally:
        del graphs.decode


def same_share(ours: Sequence[Written], theirs: Sequence[Written]) -> float:
    """The share of the tokens that are the same."""
    pairs = [
        pair for one, other in zip(ours, theirs, strict=True) for pair in zip(one.tokens, other.tokens, strict=True)
    ]
    return sum(a == b for a, b in pairs) / len(pairs)


def same_share_so_far(ours: Sequence[Written], theirs: Sequence[Written]) -> float:
    """The share of the tokens that are the same, up to the first difference of each pair of texts. If this is high and
    `same_share` is low, single tokens differ, and the texts after them follow from that."""
    same = different = 0
    for one, other in zip(ours, theirs, strict=True):
        pairs = zip(one.tokens, other.tokens, strict=True)
        first = next((at for at, (a, b) in enumerate(pairs) if a != b), None)
        same += len(one.tokens) if first is None else first
        different += first is not None
    return same / (same + different)


def _profiled(check: Check, way: str, engine: LocalEngine, written: Sequence[Written]) -> list[Written]:
    """Kernel launches of a decode step, and how often the host waits in one; on a CPU neither exists."""
    if not check.on_card:
        return list(written)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        together, forwards = continue_all(engine, written, PROFILED)
    count = launches({event.key: event.count for event in profiler.key_averages()})
    if count:
        most = GRAPH_LAUNCHES if way == "graphs" else None
        check.found(f"{way}: launches of a step", count / forwards, at_most=most)
    with host_waits() as waits:
        together, forwards = continue_all(engine, together, PROFILED)
    check.found(f"{way}: waits of a step", len(waits) / forwards, at_most=None if way == "waiting" else 0)
    return together


@contextmanager
def host_waits() -> Iterator[list[warnings.WarningMessage]]:
    """What torch says about calls for which the host waits; to wait for an event is none of them."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        found: list[warnings.WarningMessage] = []
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
            found += [one for one in warned if "called a synchronizing CUDA operation" in str(one.message)]
