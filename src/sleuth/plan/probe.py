"""Runs the first steps of a recipe in their own process and measures their costs."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from sleuth.recipe import Recipe, dump_toml
from sleuth.recipe.evaluation import EvaluationFields
from sleuth.runs.checkpoints import STATE, checkpoints_in, step_name
from sleuth.runs.disk import bytes_in
from sleuth.runs.manifest import Manifest
from sleuth.runs.metrics import MetricsFile
from sleuth.types import SleuthError

QUESTIONS = 128
"""Questions of an evaluation in a probe: two rounds of its slots, so that the emptying end weighs little."""
PER_SET = 32
"""Questions of each set of a suite."""
POLL_SECONDS = 0.5
"""Seconds between checks of the probe's progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a stage: seconds by purpose ("total", of which "asking" and "saving"), and peak bytes."""

    seconds: Mapping[str, float]
    host_memory: int
    gpu_memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Sums over the arms of an evaluation: `tokens` that the policy sampled, and `bytes` of its files."""

    questions: int
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Measurements of a shortened run by stage name: metrics rows, costs, evaluations, bytes of (weights, state) of a
    checkpoint, and other bytes that each step writes."""

    rows: Mapping[str, Sequence[Mapping[str, Any]]]
    costs: Mapping[str, Cost]
    evaluated: Mapping[str, Evaluated]
    checkpoints: Mapping[str, tuple[int, int]]
    bytes_a_step: Mapping[str, float]


def shortened(recipe: Recipe, steps: int, *, world: int = 1) -> Recipe:
    """The recipe with at most `steps` steps of every training stage, saved once, and `QUESTIONS` questions of every
    evaluation, without stages that ask a teacher. Learning-rate horizons stay, so a step does the same work. For
    several ranks, whose memory follows from that of a process that holds all, nothing is offloaded."""
    measured = tuple(
        stage.shortened(steps=steps, questions=QUESTIONS, per_set=PER_SET, offload=world == 1)
        for stage in recipe.stage
        if stage.trains or stage.measures
    )
    return recipe.model_copy(update={"stage": measured, "trackers": ()})


def run_probe(
    recipe: Recipe,
    command: Sequence[str],
    folder: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Probe:
    """Runs a (shortened) recipe in an empty folder by `command` + `RECIPE --run DIR`, in its own process, so that its
    memory is measured alone. Raises SleuthError with its last line of output if it fails.
    """
    run, file, log = folder / "run", folder / "probe.toml", folder / "output.txt"
    file.write_text(dump_toml(recipe), encoding="utf-8")
    total = sum(getattr(stage, "stop_after", None) or 0 for stage in recipe.stage)
    metrics, seen = MetricsFile(run / "metrics.jsonl"), 0
    with log.open("wb") as output:
        child = subprocess.Popen([*command, str(file), "--run", str(run)], stdout=output, stderr=output)
        try:
            while child.poll() is None:
                time.sleep(POLL_SECONDS)
                if (done := len(metrics.rows())) > seen:
                    progress(seen := done, total)
        finally:
            child.kill()
            child.wait()
    if child.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise SleuthError(f"the probe failed: {lines[-1].removeprefix('error: ') if lines else 'it printed nothing'}")
    return read_probe(recipe, run)


def read_probe(recipe: Recipe, place: Path) -> Probe:
    """The measurements in the folder of a finished run."""
    evaluations = recipe.stages_of(EvaluationFields).values()
    rows = MetricsFile(place / "metrics.jsonl").rows()
    trained = list(dict.fromkeys(row["stage"] for row in rows))  # a warm start may have been skipped
    by_stage = {name: [row for row in rows if row["stage"] == name] for name in trained}
    saved = zip(trained, checkpoints_in(place / "checkpoints"), strict=True)  # each stage saved only its last step
    return Probe(
        rows=by_stage,
        costs={
            name: Cost(
                seconds=cost["seconds"], host_memory=cost["host_memory_bytes"], gpu_memory=cost["gpu_memory_bytes"]
            )
            for name, cost in Manifest(place / "manifest.json").costs().items()
        },
        evaluated={stage.name: _evaluated(stage.evaluations, place / "eval") for stage in evaluations},
        checkpoints={name: _sizes(checkpoint) for name, checkpoint in saved},
        bytes_a_step={name: fmean(_bytes_of_step(place, row) for row in by_stage[name]) for name in trained},
    )


def _evaluated(arms: Sequence[str], folder: Path) -> Evaluated:
    """Reads the files of a stage's arms; a suite has its records in a file for each set."""
    files = [file for arm in arms for file in (folder / f"{arm}.json", *folder.glob(f"{arm}@*.json"))]
    records = [record for file in files for record in json.loads(file.read_text(encoding="utf-8")).get("records", ())]
    return Evaluated(
        questions=len(records) // len(arms),
        tokens=sum(map(_written, records)),
        bytes=sum(file.stat().st_size for file in files),
    )


def _written(record: Mapping[str, Any]) -> int:
    """Tokens sampled for one question, or for one prefix by both models."""
    if "tokens" in record:
        return record["tokens"]
    return sum(segment["tokens"] for segment in record["segments"] if segment["author"] == "policy")


def _bytes_of_step(place: Path, row: Mapping[str, Any]) -> int:
    """Bytes of its rollouts, if any, and of its row of metrics."""
    rollouts = place / "rollouts" / f"{step_name(row['step'])}.parquet"
    return len(json.dumps(row)) + (rollouts.stat().st_size if rollouts.exists() else 0)


def _sizes(checkpoint: Path) -> tuple[int, int]:
    state = (checkpoint / STATE).stat().st_size
    return bytes_in(checkpoint) - state, state
