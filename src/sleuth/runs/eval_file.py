"""Files of what was measured: evaluations (a JSON object with the figures, the records, and the name and digest of the
evaluated model), and the cards of judges."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sleuth.host.atomic import DAMAGED, write_text
from sleuth.host.checksums import weights_sha256
from sleuth.runs.chain import forget, is_object, recorded
from sleuth.types import SleuthError

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
    for file in sorted(folder.rglob("*.json")):
        if not is_object(file):
            forget(file)
            aside = file.rename(file.with_name(file.name + DAMAGED))
            say(f"{file} is damaged: it is now {aside.name}, and is measured again")


def read_eval(file: Path, *, models: Mapping[str, str]) -> dict[str, Any] | None:
    """The contents if the file exists and is of these models (`{"model": "runs/demo/..."}`), else None. Only the last
    part of each name is compared, because a run folder may have moved."""
    if not file.exists():
        return None
    contents = json.loads(file.read_text(encoding="utf-8"))
    same = all(
        Path(str(contents.get(key, ""))).name == Path(model).name and not is_stale(contents, model, key=key)
        for key, model in models.items()
    )
    return contents if same else None


def is_stale(contents: Mapping[str, Any], model: str | Path, *, key: str = "model") -> bool:
    """Whether an evaluation is of other weights than the folder `model` has now. False where it is not known."""
    evaluated = contents.get(f"{key}_sha256")
    return evaluated is not None and weights_sha256(model) not in (None, evaluated)


# -- cards of judges ---------------------------------------------------------------------------------------------------

CARDS_FILE = "judges.json"
"""The cards of a run's judges: in its folder, and in each checkpoint trained on their verdicts."""
COLUMNS = ("judge", "asked for", "right", "95 % interval", "n", "worst kind")


def read_cards(folder: Path) -> dict[str, dict[str, Any]]:
    """The cards in a folder by the judge's identity; empty if no judge was examined. Raises SleuthError if the file is
    damaged."""
    file = folder / CARDS_FILE
    if not file.exists():
        return {}
    try:
        return {card["judge"]: card for card in json.loads(file.read_bytes())}
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise SleuthError(f"{file}: holds no cards of judges ({error}); remove it to examine them again") from None


def mark_rows(cards: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A row of `COLUMNS` for each skill of each judge."""
    rows = []
    for card in cards:
        for skill, mark in card.get("skills", {}).items():  # a card of former versions has none
            right, worst = mark["accuracy"], mark["worst"]
            interval = f"{right['low']:.3f} to {right['high']:.3f}"
            kind = f"{worst.replace('_', ' ')}: {mark['kinds'][worst]['value']:.2f}"
            figures = (f"{right['value']:.3f}", interval, str(right["n"]), kind)
            rows.append((card["judge"], skill.replace("_", " "), *figures))
    return rows
