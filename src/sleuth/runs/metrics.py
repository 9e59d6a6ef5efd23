"""`metrics.jsonl`: one JSON object a step."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sleuth.recipe.renamed import renamed_figures
from sleuth.runs.atomic import write_text
from sleuth.types import SleuthError


class MetricsFile:
    """The figures of a run's steps, in order. Steps of a stage are counted from 1.

    `metrics.append("grpo", 12, {"reward_mean": 0.31})` writes `{"stage": "grpo", "step": 12, "reward_mean": 0.31}`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, stage: str, step: int, figures: Mapping[str, Any]) -> None:
        """Write one step's row, whole or not at all, and hand it to the system at once. A figure that is not finite is
        written as null."""
        row = {"stage": stage, "step": step} | {name: _finite(value) for name, value in figures.items()}
        with open(self.path, "ab") as file:
            end = file.tell()
            try:
                file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
                file.flush()
            except OSError:
                os.truncate(self.path, end)
                raise

    def rows(self) -> list[dict[str, Any]]:
        """Every row, under today's names. A last line that a killed process left half written is passed over."""
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        rows = []
        for number, line in enumerate(lines, start=1):
            try:
                rows.append(renamed_figures(json.loads(line)))
            except ValueError:
                if number < len(lines):
                    raise SleuthError(f"{self.path}:{number}: is no JSON object; mend or remove this line") from None
        return rows

    def mend(self) -> None:
        """Take away a half-written last line, so that the next row begins on its own line."""
        if self.path.exists():
            self._write(self.rows())

    def rewind(self, stage: str, step: int) -> None:
        """Forget the rows of `stage` after `step`: the run goes on from there and will write them again."""
        self._write([row for row in self.rows() if row["stage"] != stage or row["step"] <= step])

    def _write(self, rows: list[dict[str, Any]]) -> None:
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in rows))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
