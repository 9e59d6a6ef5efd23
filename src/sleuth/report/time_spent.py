"""Where the time of a run went: seconds of each stage by purpose, from the manifest and the metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

PURPOSES = {"rollouts": "seconds_rollout", "updates": "seconds_update"}
"""Purposes whose seconds are those of the steps, with their figure in `metrics.jsonl`."""
NAMES = (*PURPOSES, "questions", "saves", "other")
"""All purposes in the order of their bars; `other` is loading, waiting and steps that a restart repeated."""
COSTS = {"asking": "questions", "saving": "saves"}
"""Purposes by their names in the manifest."""


class Part(NamedTuple):
    """The seconds of one purpose. `share` is that of the longest stage, the length of its bar."""

    name: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """The seconds of a stage, restarts included, and what they were spent on; its peak bytes of memory, of a GPU if it
    used one; and both by the plan, where it has them."""

    stage: str
    seconds: float
    parts: tuple[Part, ...]
    memory: float
    planned: Mapping[str, float | None]


def stage_times(manifest: Mapping[str, Any], stages: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[StageTime]:
    """The times of the stages in the manifest, in their order; `stages` are their rows of metrics."""
    by_stage = {
        stage: _by_purpose(cost.get("seconds", {}), stages.get(stage, ()))
        for stage, cost in manifest.get("costs", {}).items()
    }
    totals = {stage: sum(purposes.values()) for stage, purposes in by_stage.items()}
    longest = max(totals.values(), default=0.0)
    costs, planned = manifest.get("costs", {}), manifest.get("planned", {})
    return [
        StageTime(
            stage=stage,
            seconds=totals[stage],
            parts=tuple(Part(name, spent, spent / longest) for name in NAMES if (spent := purposes[name]) > 0),
            memory=costs[stage].get("gpu_memory_bytes") or costs[stage].get("host_memory_bytes") or 0,
            planned=planned.get(stage, {}),
        )
        for stage, purposes in by_stage.items()
        if totals[stage] > 0
    ]


def duration(seconds: float) -> str:
    """`4.2 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _by_purpose(seconds: Mapping[str, float], rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The seconds of every purpose. A stage under way has no total yet: then nothing is known of the rest."""
    purposes = {name: sum(row.get(figure) or 0.0 for row in rows) for name, figure in PURPOSES.items()}
    purposes |= {name: seconds.get(cost, 0.0) for cost, name in COSTS.items()}
    return purposes | {"other": max(0.0, seconds.get("total", 0.0) - sum(purposes.values()))}
