"""Every stored episode in files beside the page, `report_rollouts/step-000100.js`, which it loads when they are chosen.

They are scripts, because a page that is opened from a folder may load nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sleuth.host.atomic import write_text
from sleuth.report.rollouts_shown import rollouts_of, step_of
from sleuth.report.transcripts import TextPool

FOLDER = "report_rollouts"


def write_step_files(files: Sequence[Path], run: Path, tokenizer: Tokenizer | None) -> None:
    """Writes a script for each file of rollouts, unless there is one that is newer."""
    (run / FOLDER).mkdir(exist_ok=True)
    for file in files:
        script = run / _name(file)
        if not script.exists() or script.stat().st_mtime <= file.stat().st_mtime:
            pool = TextPool()
            step = {"step": step_of(file), "groups": rollouts_of(file, pool, tokenizer), "texts": pool.texts}
            write_text(script, f"addStep({json.dumps(step, separators=(',', ':'))});\n")


def with_files(shown: Sequence[dict[str, Any]], files: Sequence[Path]) -> list[dict[str, Any]]:
    """All steps, in order: those that the page holds, and empty ones. Each that lacks groups names its `file`."""
    held = {step["step"]: step for step in shown}
    steps = [(file, held.get(step_of(file), {"step": step_of(file), "of": None, "groups": []})) for file in files]
    return [step if len(step["groups"]) == step["of"] else step | {"file": _name(file)} for file, step in steps]


def _name(file: Path) -> str:
    return f"{FOLDER}/step-{step_of(file):06d}.js"
