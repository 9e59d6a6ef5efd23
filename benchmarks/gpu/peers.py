"""Our update beside those of others, in one process with the same rows: plain torch on padded rows by transformers' own
forward, and TRL's trainer where it is installed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.gpu.card import release, timed
from benchmarks.gpu.checks import Check
from benchmarks.gpu.learner import open_policy, relative_error
from benchmarks.padded_peer import Padded
from benchmarks.shapes import draw_rows
from benchmarks.sides import Terms
from sleuth.kernels.device import is_out_of_memory
from sleuth.learn.batch import Row, collate
from sleuth.learn.losses import PolicyLoss

UPDATES = 2
"""Updates that are timed, after one that compiles and loads what they have; the faster one counts."""
SETTINGS = (4, 8)
"""Rows of a peer's micro-batch."""
GRADIENT_ERROR = 0.05
"""Relative error of a bf16 gradient between two computations, one of which adds micro-batches up in bf16."""
TRL_PACKAGES = ("trl", "datasets", "accelerate")
TRL_SECONDS = 20
"""What TRL is given at least."""

WAYS = {"as the recipe": True, "nothing recomputed": False}
"""Whether gradients are checkpointed, which on a card recomputes only what does not fit."""
Times = dict[str, float]


def peers(check: Check) -> None:
    """Seconds of an update by each side at its settings, and the ratio of the best ones. All compute in bf16; ours
    steps fp32 masters, peers their bf16 weights, which is less work."""
    rows = draw_rows(check.scale.peers)
    check.found("rows", len(rows))
    check.found("tokens of all rows", sum(len(row.tokens) for row in rows))
    ours = _try(check, {f"ours, {way}": (lambda way=way: _ours(check, rows, way)) for way in WAYS})
    padded = _try(check, {f"padded, {size} rows": (lambda size=size: _padded(check, rows, size)) for size in SETTINGS})
    _ratio(check, "padded over ours", padded, ours)
    _compare_gradients(check)
    missing = [name for name in TRL_PACKAGES if find_spec(name) is None]
    if missing:
        check.skip(f"TRL: no {' and no '.join(missing)}")
        return
    trl = {f"TRL, {size} rows": (lambda size=size: _trl(check, rows, size)) for size in SETTINGS}
    _ratio(check, "TRL over ours", _try(check, trl, least=TRL_SECONDS), ours)


def _try(check: Check, sides: dict[str, Callable[[], float]], *, least: float = 0) -> Times:
    """The seconds of each side for which there is memory, and of the later ones `least` seconds."""
    times: Times = {}
    for name, side in sides.items():
        if times and check.left < least:
            check.skip(f"{name}: {check.left:.0f} s are left")
            continue
        try:
            times[name] = side()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            check.skip(f"{name}: out of memory")
        else:
            check.found(name, times[name], "s")
        release(check.device)
    return times


def _ratio(check: Check, name: str, theirs: Times, ours: Times) -> None:
    """How many times faster our best is than theirs."""
    if theirs and ours:
        check.found(name, min(theirs.values()) / min(ours.values()))


def _ours(check: Check, rows: Sequence[Row], way: str) -> float:
    """As the recipe sets an update up; where all activations are kept, in passes of half as many tokens."""
    recomputes = WAYS[way]
    policy, budget = open_policy(check, recomputes=recomputes), check.scale.budget // (1 if recomputes else 2)
    return _fastest(check, lambda: policy.update(collate(rows), PolicyLoss(), budget=budget))


def _padded(check: Check, rows: Sequence[Row], size: int) -> float:
    side = Padded(_terms(rows, size), check.scale.model(check.device))
    return _fastest(check, lambda: side.play([rows]))


def _trl(check: Check, rows: Sequence[Row], size: int) -> float:
    from benchmarks.trl_peer import Trl  # needs TRL

    began = time.monotonic()
    options = {"bf16": check.on_card, "use_cpu": not check.on_card}
    side = Trl(_terms(rows, size), check.scale.model(check.device), check.scale.tokenizer(), **options)
    _, *seconds = side.play([rows] * (1 + UPDATES))
    print(f"TRL, {size} rows: {time.monotonic() - began:.0f} s in all", file=sys.stderr, flush=True)
    return min(seconds)


def _terms(rows: Sequence[Row], size: int) -> Terms:
    return Terms(model=Path(), setting=size, rows=len(rows), siblings=8)


def _fastest(check: Check, update: Callable[[], object]) -> float:
    update()
    return min(timed(check.device, update) for _ in range(UPDATES))


def _compare_gradients(check: Check) -> None:
    """Our gradient of a few rows beside that of padded ones, from the same weights."""
    rows = draw_rows(check.scale.gradient)
    policy = open_policy(check)
    _, ours = policy.gradient(collate(rows), PolicyLoss(), budget=check.scale.budget)
    names = list(policy.masters.tensors)
    del policy
    release(check.device)
    gradients = Padded(_terms(rows, SETTINGS[0]), check.scale.model(check.device)).gradients(rows)
    theirs: Tensor = torch.cat([gradients[name].flatten() for name in names])
    check.found("gradient beside padded, error", relative_error(ours, theirs), at_most=GRADIENT_ERROR)
