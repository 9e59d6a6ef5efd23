"""Evaluation files: a JSON object with the figures, the records, and the name and digest of the evaluated model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sleuth.host.atomic import DAMAGED, write_text
from sleuth.host.checksums import weights_sha256
from sleuth.runs.chain import forget, recorded

MODELS = ("model", "against")
"""Keys that name the models of an evaluation; `model_sha256` is the digest of the weights, where they are a folder."""


def with_digests(contents: Mapping[str, Any]) -> dict[str, Any]:
    """The contents with the digest of the weights after the name of each model. Where a server had the weights, this
    process does not read them for it."""
    known: dict[str, Any] = {}
    for key, value in contents.items():
        known[key] = value
        if key not in MODELS or f"{key}_sha256" in contents:
            continue
        if (digest := weights_sha256(str(value), read="engine" not in contents)) is not None:
            known[f"{key}_sha256"] = digest
    return known


def write_eval(file: Path, contents: Mapping[str, Any]) -> None:
    """Writes the file atomically, `with_digests`."""
    text = json.dumps(with_digests(contents), ensure_ascii=False, indent=1) + "\n"
    with recorded(file):
        write_text(file, text)


def set_aside_damaged(folder: Path, say: Callable[[str], None]) -> None:
    """Renames every file of the folder that is no JSON object, and prints a line about it: it is measured again."""
    for file in sorted(folder.glob("*.json")):
        try:
            whole = isinstance(json.loads(file.read_bytes()), dict)
        except (ValueError, RecursionError):
            whole = False
        if not whole:
            forget(file)
            aside = file.rename(file.with_name(file.name + DAMAGED))
            say(f"{file} is damaged: it is now {aside.name}, and is measured again")


def read_eval(file: Path, *, models: Mapping[str, str], rolled_back: bool = False) -> dict[str, Any] | None:
    """The contents if the file exists and is of these models (`{"model": "runs/demo/..."}`), else None. Only the last
    part of each name is compared, because a run folder may have moved; `rolled_back` as in `is_stale`."""
    if not file.exists():
        return None
    contents = json.loads(file.read_text(encoding="utf-8"))
    same = all(
        Path(str(contents.get(key, ""))).name == Path(model).name
        and not is_stale(file, contents, model, key=key, rolled_back=rolled_back and key == "model")
        for key, model in models.items()
    )
    return contents if same else None


def is_stale(
    file: Path, contents: Mapping[str, Any], model: str | Path, *, key: str = "model", rolled_back: bool = False
) -> bool:
    """Whether an evaluation is of other weights than the folder `model` has now. Files of earlier versions have no
    digest: those of a run that was `rolled_back` are stale if the weights are younger. False where it is not known."""
    if (evaluated := contents.get(f"{key}_sha256")) is not None:
        return weights_sha256(model) not in (None, evaluated)
    weights = [*Path(model).glob("*.safetensors")] if rolled_back else []
    return any(one.stat().st_mtime_ns > file.stat().st_mtime_ns for one in weights)
