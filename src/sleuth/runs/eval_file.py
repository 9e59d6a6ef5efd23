"""Evaluation files: a JSON object with the figures, the records and the name of the evaluated model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sleuth.runs.atomic import DAMAGED, write_text


def write_eval(file: Path, contents: Mapping[str, Any]) -> None:
    """Writes the file atomically."""
    write_text(file, json.dumps(contents, ensure_ascii=False, indent=1) + "\n")


def set_aside_damaged(folder: Path, say: Callable[[str], None]) -> None:
    """Renames every file of the folder that is no JSON object, and prints a line about it: it is measured again."""
    for file in sorted(folder.glob("*.json")):
        try:
            whole = isinstance(json.loads(file.read_bytes()), dict)
        except (ValueError, RecursionError):
            whole = False
        if not whole:
            aside = file.rename(file.with_name(file.name + DAMAGED))
            say(f"{file} is damaged: it is now {aside.name}, and is measured again")


def read_eval(file: Path, **models: str) -> dict[str, Any] | None:
    """The contents if the file exists and names these models (`model="runs/demo/..."`), else None: an evaluation of an
    earlier checkpoint is stale. Only the last part of each name is compared, because a run folder may have moved."""
    if not file.exists():
        return None
    contents = json.loads(file.read_text(encoding="utf-8"))
    same = all(Path(str(contents.get(key, ""))).name == Path(model).name for key, model in models.items())
    return contents if same else None
