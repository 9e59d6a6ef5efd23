"""The cards of a run's judges: `judges.json` in its folder, and in each checkpoint trained on their verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

CARDS_FILE = "judges.json"
COLUMNS = ("judge", "asked for", "right", "95 % interval", "n", "worst kind")
UNKNOWN = "unknown"


def read_cards(folder: Path) -> dict[str, dict[str, Any]]:
    """The cards in a folder by the judge's identity; empty if no judge was examined."""
    file = folder / CARDS_FILE
    if not file.exists():
        return {}
    return {card["judge"]: card for card in json.loads(file.read_text(encoding="utf-8"))}


def mark_rows(cards: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A row of `COLUMNS` for each skill of each judge. A card of an earlier version knows only how often claims were
    judged right."""
    rows = []
    for card in cards:
        if "skills" not in card:
            rows.append((card["judge"], "claims", f"{card['accuracy']:.3f}", UNKNOWN, UNKNOWN, UNKNOWN))
        for skill, mark in card.get("skills", {}).items():
            right, worst = mark["accuracy"], mark["worst"]
            interval = f"{right['low']:.3f} to {right['high']:.3f}"
            kind = f"{worst.replace('_', ' ')}: {mark['kinds'][worst]['value']:.2f}"
            figures = (f"{right['value']:.3f}", interval, str(right["n"]), kind)
            rows.append((card["judge"], skill.replace("_", " "), *figures))
    return rows
