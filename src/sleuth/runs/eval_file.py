"""A file of what was measured of a model: a JSON object with the figures, the records and the name of who was asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sleuth.runs.atomic import write_text


def write_eval(file: Path, contents: Mapping[str, Any]) -> None:
    """The file whole, or not at all."""
    write_text(file, json.dumps(contents, ensure_ascii=False, indent=1) + "\n")


def read_eval(file: Path, **models: str) -> dict[str, Any] | None:
    """The contents where the file is there and of these very models, such as `model="runs/demo/..."`; else None: a
    stage that went on makes what was measured of its earlier end stale. Names are compared, because a run folder may
    have been moved."""
    if not file.exists():
        return None
    found = json.loads(file.read_text(encoding="utf-8"))
    same = all(Path(found[key]).name == Path(model).name for key, model in models.items())
    return found if same else None
