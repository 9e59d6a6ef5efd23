"""Evaluation files: a JSON object with the figures, the records and the name of the evaluated model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sleuth.runs.atomic import write_text


def write_eval(file: Path, contents: Mapping[str, Any]) -> None:
    """Writes the file atomically."""
    write_text(file, json.dumps(contents, ensure_ascii=False, indent=1) + "\n")


def read_eval(file: Path, **models: str) -> dict[str, Any] | None:
    """The contents if the file exists and names these models (`model="runs/demo/..."`), else None: an evaluation of an
    earlier checkpoint is stale. Only the last part of each name is compared, because a run folder may have moved."""
    if not file.exists():
        return None
    contents = json.loads(file.read_text(encoding="utf-8"))
    same = all(Path(contents[key]).name == Path(model).name for key, model in models.items())
    return contents if same else None
