"""The first steps of a recipe, made in a process of their own, and what they cost."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from sleuth.recipe import EvaluateRecipe, ProbeRecipe, ReasonRecipe, Recipe, WinRateRecipe, dump_toml
from sleuth.runs.checkpoints import STATE, checkpoints_in, step_name
from sleuth.runs.disk import bytes_in
from sleuth.runs.manifest import Manifest
from sleuth.runs.metrics import MetricsFile
from sleuth.types import SleuthError

QUESTIONS = 128
"""An evaluation asks so many in a probe: two rounds of its slots, so that its end, when few are left, weighs little."""
PER_SET = 32
"""Of a suite, so many of each set."""
LOOK = 0.5
"""Seconds between two looks at how far the probe is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a stage took: seconds by what they went to ("total", and of it "asking" and "saving"), bytes at its peak."""

    seconds: Mapping[str, float]
    host_memory: int
    gpu_memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an evaluation left, in all its arms together: `tokens` that the policy wrote, and `bytes` of its files."""

    questions: int
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a shortened run left, by the names of its stages: rows of metrics, costs, what evaluations asked, bytes of
    (weights, state) of a checkpoint, and bytes that each step leaves beside them."""

    rows: Mapping[str, Sequence[Mapping[str, Any]]]
    costs: Mapping[str, Cost]
    asked: Mapping[str, Asked]
    checkpoints: Mapping[str, tuple[int, int]]
    bytes_a_step: Mapping[str, float]


def shortened(recipe: Recipe, steps: int) -> Recipe:
    """The recipe with at most `steps` steps of every stage that trains, saved once, and `QUESTIONS` of every
    evaluation. Horizons stay, and with them what is done in a step."""

    def cut(stage: Any) -> Any:
        if isinstance(stage, WinRateRecipe | ProbeRecipe):
            fewer = {"limit": min(stage.data.limit, QUESTIONS)}
            return stage.model_copy(update={"data": stage.data.model_copy(update=fewer)})
        if isinstance(stage, ReasonRecipe):
            sets = (one.model_copy(update={"limit": min(one.limit or PER_SET, PER_SET)}) for one in stage.sets)
            return stage.model_copy(update={"sets": tuple(sets)})
        if isinstance(stage, EvaluateRecipe):
            key, most = ("limit", QUESTIONS) if stage.data.suite is None else ("per_set", PER_SET)
            fewer = {key: min(getattr(stage.data, key) or most, most)}
            return stage.model_copy(update={"data": stage.data.model_copy(update=fewer)})
        last = min(steps, stage.stop_after or stage.steps)
        alone = {"cpu_offload": False}  # one process makes them
        return stage.model_copy(update={"stop_after": last, "save_every": last, "milestone_every": None} | alone)

    return recipe.model_copy(update={"stage": tuple(cut(stage) for stage in recipe.stage), "trackers": ()})


def run_probe(
    recipe: Recipe,
    command: Sequence[str],
    folder: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Probe:
    """Run a (shortened) recipe in an empty folder by `command`, which `RECIPE --run DIR` is added to: a process of its
    own, so that what it takes is taken by nothing else. Raises SleuthError, with the last line it said, where it fails.
    """
    place, file, said = folder / "run", folder / "probe.toml", folder / "said.txt"
    file.write_text(dump_toml(recipe), encoding="utf-8")
    total = sum(getattr(stage, "stop_after", None) or 0 for stage in recipe.stage)
    metrics, seen = MetricsFile(place / "metrics.jsonl"), 0
    with said.open("wb") as output:
        child = subprocess.Popen([*command, str(file), "--run", str(place)], stdout=output, stderr=output)
        try:
            while child.poll() is None:
                time.sleep(LOOK)
                if (made := len(metrics.rows())) > seen:
                    progress(seen := made, total)
        finally:
            child.kill()
            child.wait()
    if child.returncode:
        lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise SleuthError(f"the probe failed: {lines[-1].removeprefix('error: ') if lines else 'it said nothing'}")
    return read_probe(recipe, place)


def read_probe(recipe: Recipe, place: Path) -> Probe:
    """What the folder of a run that has ended says of its costs."""
    evaluated = [
        stage
        for stage in recipe.stage
        if isinstance(stage, EvaluateRecipe | WinRateRecipe | ProbeRecipe | ReasonRecipe)
    ]
    rows = MetricsFile(place / "metrics.jsonl").rows()
    trained = list(dict.fromkeys(row["stage"] for row in rows))  # a warm start may have been left out
    by_stage = {name: [row for row in rows if row["stage"] == name] for name in trained}
    saved = zip(trained, checkpoints_in(place / "checkpoints"), strict=True)  # each has saved its last step alone
    return Probe(
        rows=by_stage,
        costs={
            name: Cost(
                seconds=cost["seconds"], host_memory=cost["host_memory_bytes"], gpu_memory=cost["gpu_memory_bytes"]
            )
            for name, cost in Manifest(place / "manifest.json").costs().items()
        },
        asked={stage.name: _asked(stage, place / "eval") for stage in evaluated},
        checkpoints={name: _sizes(checkpoint) for name, checkpoint in saved},
        bytes_a_step={name: fmean(_bytes_of_step(place, row) for row in by_stage[name]) for name in trained},
    )


def _asked(stage: EvaluateRecipe | WinRateRecipe | ProbeRecipe | ReasonRecipe, folder: Path) -> Asked:
    """From the files of the stage's arms; those of a suite have their records in a file for each set."""
    forced = isinstance(stage, EvaluateRecipe) and stage.forced_search_arm
    arms = (stage.name, f"{stage.name}_forced") if forced else (stage.name,)
    files = [file for arm in arms for file in (folder / f"{arm}.json", *folder.glob(f"{arm}@*.json"))]
    records = [record for file in files for record in json.loads(file.read_text(encoding="utf-8")).get("records", ())]
    return Asked(
        questions=len(records) // len(arms),
        tokens=sum(map(_written, records)),
        bytes=sum(file.stat().st_size for file in files),
    )


def _written(record: Mapping[str, Any]) -> int:
    """Tokens that were written for one question, or for one prefix by both models."""
    if "tokens" in record:
        return record["tokens"]
    return sum(segment["tokens"] for segment in record["segments"] if segment["author"] == "policy")


def _bytes_of_step(place: Path, row: Mapping[str, Any]) -> int:
    """Its rollouts, where it played any, and its row of metrics."""
    rollouts = place / "rollouts" / f"{step_name(row['step'])}.parquet"
    return len(json.dumps(row)) + (rollouts.stat().st_size if rollouts.exists() else 0)


def _sizes(checkpoint: Path) -> tuple[int, int]:
    state = (checkpoint / STATE).stat().st_size
    return bytes_in(checkpoint) - state, state
