"""The table of a published system: its figures beside those of our runs, as lines and as a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from sleuth.evaluation.intervals import Measured, wilson
from sleuth.evaluation.paired import measured_of
from sleuth.host.model_path import read_object
from sleuth.recipe.published import STEPS, PublishedRow, PublishedSystem
from sleuth.report.page import fill, write_page
from sleuth.runs.metrics import MetricsFile

WINDOW = 20
"""Steps of a mean of a figure of steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """A line: the published value (None if there is none), its interval if it is a share of so many questions, and
    ours, None where the run has not come to it. `low` and `high` of a figure of steps are None."""

    about: str
    published: float | None
    interval: Measured | None
    ours: Measured | None

    def cells(self) -> list[str]:
        """`0.162 [0.150, 0.174]`, `0.171 [0.159, 0.183]` and `3,610`."""
        theirs = "" if self.published is None else f"{self.published:.3f}"
        return [
            self.interval.bracketed(bound=".3f") if self.interval else theirs,
            _shown(self.ours),
            f"{self.ours.n:,}" if self.ours else "",
        ]

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        theirs = self.interval.as_json() if self.interval else {"value": self.published}
        return {"about": self.about, "published": theirs, "ours": self.ours and self.ours.as_json()}


def published_table(system: PublishedSystem, places: dict[str, Path], *, tiny: bool) -> list[ComparedRow]:
    """The rows whose runs are in `places`, folders by name; the arms of a sweep are folders in them."""
    rows = [row for row in system.row if row.place(tiny=tiny)[0][0] in places]
    return [
        ComparedRow(
            about=row.about,
            published=row.published,
            interval=wilson(row.published * row.of, row.of) if row.of and row.published is not None else None,
            ours=_measured(row, places, tiny),
        )
        for row in rows
    ]


def _measured(row: PublishedRow, places: dict[str, Path], tiny: bool) -> Measured | None:
    (run, *arm, stage), key = row.place(tiny=tiny)
    folder = places[run].joinpath(*arm)
    if stage == STEPS:
        return _peak([step[key] for step in MetricsFile(folder / "metrics.jsonl").rows() if step.get(key) is not None])
    file = folder / "eval" / f"{stage}.json"
    return measured_of(read_object(file).get(key)) if file.is_file() else None


def _peak(values: list[float]) -> Measured | None:
    """The highest mean of `WINDOW` consecutive values, or of all if there are fewer; n is their number."""
    if not values:
        return None
    size = min(WINDOW, len(values))
    peak = max(fmean(values[at : at + size]) for at in range(len(values) - size + 1))
    return Measured(value=peak, low=None, high=None, n=len(values))


def _shown(ours: Measured | None) -> str:
    if ours is None or ours.value is None:
        return "not measured"
    return f"{ours.value:.3f}" if ours.low is None else ours.bracketed(bound=".3f")


def write_published(title: str, lines: list[str], rows: list[ComparedRow], pages: dict[str, str], file: Path) -> None:
    """Writes the page: lines on what it is, the table, and links to the reports of the runs, by name."""
    write_page(file, fill("published.html", (), title=title, lines=lines, rows=rows, pages=pages))
