"""The comparisons: ours with a peer, the arguments of both, and the grid in which the peer is tuned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from benchmarks.ours import BUDGET
from benchmarks.shapes import SHAPES

Setting = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """The measurement of a job: its key, its unit, and whether more is better."""

    key: str
    unit: str
    more_is_better: bool = False


SECONDS = Metric(key="seconds", unit="s")
SPEED = Metric(key="tokens_per_second", unit="tokens/s", more_is_better=True)
METRICS = {
    "update": SECONDS,
    "step": SECONDS,
    "sample": SPEED,
    "episodes": SPEED,
    "memory": Metric(key="megabytes", unit="MB"),
}
"""By job, see `jobs.JOBS`."""

BETA = 0.001
ROWS = tuple({"setting": rows} for rows in (1, 2, 4, 8, 16))
TRL = (*ROWS, {"setting": 8, "recompute": True})
"""Micro-batches of rows. The last is TRL's own default: 8 rows, with gradient checkpointing."""

OURS = tuple({"setting": tokens, "recompute": recompute} for recompute in (False, True) for tokens in (BUDGET, 1_024))
"""Tokens of a micro-batch, without and with gradient checkpointing: for rows in which ours is tuned."""

CONTINUOUS = (
    *({"requests": requests, "tokens": 512, "attention": "sdpa"} for requests in (4, 8, 16, 64)),
    {"requests": 16, "tokens": 2_048, "attention": "sdpa"},
    {"requests": 16, "tokens": 512, "attention": "paged|eager"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One row of the table. `job` is measured with `given` for both sides and with `ours` and `peer` for each; the peer
    takes the setting of `grid` that is best at `tuned_by`, and so does ours where it has an `own_grid`. With
    `same_gradients`, those are compared before time is. With `busy`, another process keeps a core busy whenever either
    side runs."""

    name: str
    job: str
    ours: Setting
    peer: Setting
    grid: tuple[Setting, ...]
    tuned_by: str
    own_grid: tuple[Setting, ...] = ()
    given: Setting = field(default_factory=dict)
    same_gradients: bool = False
    busy: bool = False


def all_comparisons() -> list[Comparison]:
    """Every row, in the order of the table."""
    return [*_updates(), *_memory(), *_sampling(), _step(), *_busy()]


def _updates() -> Iterator[Comparison]:
    for shape in SHAPES.values():
        groups = tuple({"setting": count} for count in (1, 2, 4) if count <= shape.prompts)
        for peer, grid in (("trl", TRL), ("padded", ROWS), ("prefix_grouper", groups)):
            yield _update(shape.name, peer, grid)
        yield _update(shape.name, "trl", TRL, mark="_kl", beta=BETA)


def _update(shape: str, peer: str, grid: tuple[Setting, ...], mark: str = "", **terms: float) -> Comparison:
    return Comparison(
        name=f"update/{shape}/{peer}{mark}",
        job="update",
        given={"shape": shape, **terms},
        ours={"side": "ours", "setting": BUDGET},
        peer={"side": peer},
        grid=grid,
        tuned_by="update",
        same_gradients=True,
    )


def _memory() -> Iterator[Comparison]:
    """Each side at its smallest and at its fastest setting; ours is fastest with the default of a recipe."""
    for shape in SHAPES:
        least = Comparison(
            name=f"memory/{shape}/trl",
            job="memory",
            given={"shape": shape},
            ours={"side": "ours"},
            peer={"side": "trl"},
            grid=TRL,
            tuned_by="memory",
            own_grid=OURS,
        )
        yield least
        yield replace(
            least,
            name=f"memory/{shape}/trl_fastest",
            ours={"side": "ours", "setting": BUDGET},
            tuned_by="update",
            own_grid=(),
        )


def _sampling() -> Iterator[Comparison]:
    yield _sample("equal", "generate", _generate(16, 32, 64))
    yield _sample("ragged", "generate", _generate(32, 64, 128, 256))
    yield _sample("ragged", "continuous_batching", CONTINUOUS)
    yield Comparison(
        name="sample/two_turn/generate",
        job="episodes",
        ours={"side": "ours"},
        peer={"side": "generate"},
        grid=_generate(16, 32, 64),
        tuned_by="episodes",
    )


def _sample(workload: str, peer: str, grid: tuple[Setting, ...]) -> Comparison:
    return Comparison(
        name=f"sample/{workload}/{peer}",
        job="sample",
        given={"workload": workload},
        ours={"side": "ours"},
        peer={"side": peer},
        grid=grid,
        tuned_by="sample",
    )


def _generate(*rows: int) -> tuple[Setting, ...]:
    return tuple({"rows": count, "cache": cache} for count, cache in product(rows, (None, "static")))


def _step() -> Comparison:
    return Comparison(
        name="step/search/trl",
        job="step",
        ours={"side": "ours"},
        peer={"side": "trl"},
        grid=ROWS[:-1],
        tuned_by="step",
    )


def _busy() -> Iterator[Comparison]:
    """Rows beside a process that keeps a core busy. The peer is tuned there, with its own number of threads and with
    one."""
    update = _update("search", "trl", tuple({"setting": rows} for rows in (1, 4, 8)))
    step = replace(_step(), grid=tuple({"setting": rows} for rows in (1, 4, 8)))
    for quiet in (update, _sample("ragged", "generate", _generate(64, 256)), step):
        grid = tuple({**setting, **threads} for setting in quiet.grid for threads in ({}, {"threads": 1}))
        yield replace(quiet, name=f"busy/{quiet.name}", grid=grid, busy=True)
