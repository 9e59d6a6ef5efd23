"""What a check found: figures, bars held and missed, and the table and the JSON object of all checks."""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

WIDTH = 80

Status = Literal["done", "failed", "timed out", "not run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number that a check measured, the bar that it has to hold, if any, and the seconds that it took.
    `Figure(check="update", name="share of the peak", value=0.31, at_least=0.25, seconds=12.0)`."""

    check: str
    name: str
    value: float
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    seconds: float = 0.0

    @property
    def held(self) -> bool | None:
        """Whether the value holds its bar, which NaN never does; None without a bar."""
        if self.at_least is None and self.at_most is None:
            return None
        above = self.at_least is None or self.value >= self.at_least
        below = self.at_most is None or self.value <= self.at_most
        return above and below

    def as_json(self) -> dict[str, Any]:
        """Plain values; None for a value that is NaN or infinite, which JSON has no way to write."""
        return asdict(self) | {"value": self.value if math.isfinite(self.value) else None, "held": self.held}


@dataclass(kw_only=True)
class Outcome:
    """How a check ended. `message` says why it did not end well; `skipped` are lines about what was left out."""

    check: str
    status: Status = "not run"
    seconds: float = 0.0
    message: str = ""
    peak_memory_bytes: int | None = None
    figures: list[Figure] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def missed(self) -> int:
        """Bars missed; a check that did not end well is one."""
        return sum(figure.held is False for figure in self.figures) + (self.status != "done")

    @property
    def held(self) -> int:
        return sum(figure.held is True for figure in self.figures)

    def as_json(self) -> dict[str, Any]:
        of_check = asdict(self)
        del of_check["figures"]
        return of_check


def results(outcomes: Sequence[Outcome], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object of a run; `facts` say what was measured, where and with which versions."""
    return {
        **facts,
        "held": sum(outcome.held for outcome in outcomes),
        "missed": sum(outcome.missed for outcome in outcomes),
        "seconds": round(sum(outcome.seconds for outcome in outcomes), 1),
        "figures": [figure.as_json() for outcome in outcomes for figure in outcome.figures],
        "checks": [outcome.as_json() for outcome in outcomes],
    }


def table(outcomes: Sequence[Outcome], width: int | None = None) -> str:
    """The figures, and what failed and was skipped, in lines of at most `width` columns (the terminal's, up to 80)."""
    width = min(WIDTH, width or shutil.get_terminal_size((WIDTH, 24)).columns)
    lines = [_line(width, "check", "figure", "found", "bar", "held", "s"), "-" * width]
    for outcome in outcomes:
        lines += _lines(outcome, width)
    return "\n".join(lines)


def _lines(outcome: Outcome, width: int) -> Iterator[str]:
    for figure in outcome.figures:
        name = f"{figure.name}, {figure.unit}" if figure.unit else figure.name
        held = {True: "yes", False: "NO", None: ""}[figure.held]
        yield _line(width, figure.check, name, _number(figure.value), _bar(figure), held, f"{figure.seconds:.1f}")
    notes = [f"skipped: {line}" for line in outcome.skipped]
    if outcome.status != "done":
        notes.append(f"{outcome.status.upper()}: {outcome.message}")
    for note in notes:
        yield from textwrap.wrap(f"{outcome.check:<10} {note}", width, subsequent_indent=" " * 11)


def _line(width: int, check: str, name: str, found: str, bar: str, held: str, seconds: str) -> str:
    room = max(10, width - 46)
    return f"{check:<10.10} {name:<{room}.{room}} {found:>9} {bar:>11} {held:>4} {seconds:>6}"


def _bar(figure: Figure) -> str:
    parts = [
        f"{sign} {_number(bound)}"
        for sign, bound in ((">=", figure.at_least), ("<=", figure.at_most))
        if bound is not None
    ]
    return " ".join(parts)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
