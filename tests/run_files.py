"""What a run leaves behind, as tests compare it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sleuth.runs.rollouts import read_rollouts
from sleuth.types import Group


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def figures(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics, but for the time that was taken."""
    return [{name: value for name, value in row.items() if not name.startswith("seconds")} for row in rows(folder)]


def log(folder: Path) -> str:
    return (folder / "log.txt").read_text()


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


def evaluation(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / "eval" / f"{name}.json").read_text())


def weights(checkpoint: Path) -> bytes:
    return (checkpoint / "model.safetensors").read_bytes()


def groups(folder: Path, step: int | None = None) -> list[Group]:
    """What was played in a step, or step after step."""
    files = sorted((folder / "rollouts").glob("*" if step is None else f"step-{step:06d}.parquet"))
    return [group for file in files for group in read_rollouts(file)]


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Weights and rollouts."""
    files = [*folder.glob("checkpoints/*/model.safetensors"), *folder.glob("rollouts/*")]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def written(folder: Path) -> list[str]:
    """The names of all files."""
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
