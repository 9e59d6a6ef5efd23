"""What a check found: figures, bars held and missed, the table of all checks, and the file that keeps them."""

from __future__ import annotations

import json
import math
import os
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

WIDTH = 80

Status = Literal["done", "failed", "timed out", "interrupted", "not run"]


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
    """How a check ended. `message` says why it did not end well; `skipped` are lines about what was left out; `facts`
    are the commit, the date, the versions and the machine that it was measured with; `signal` is that which ended the
    run, if one did."""

    check: str
    status: Status = "not run"
    seconds: float = 0.0
    message: str = ""
    peak_memory_bytes: int | None = None
    figures: list[Figure] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    facts: Mapping[str, Any] = field(default_factory=dict)
    signal: int | None = None

    @property
    def missed(self) -> int:
        """Bars missed; a check that did not end well is one."""
        return sum(figure.held is False for figure in self.figures) + (self.status != "done")

    @property
    def held(self) -> int:
        return sum(figure.held is True for figure in self.figures)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"facts": dict(self.facts), "figures": [figure.as_json() for figure in self.figures]}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Outcome:
        """The outcome that `as_json` wrote."""
        names = {one.name for one in fields(Figure)}
        figures = [
            Figure(**{name: value for name, value in figure.items() if name in names} | {"value": _value(figure)})
            for figure in record["figures"]
        ]
        return cls(**{**record, "figures": figures})


def _value(figure: Mapping[str, Any]) -> float:
    return math.nan if figure["value"] is None else figure["value"]


def read_kept(path: Path) -> Kept:
    """A file as it is. Raises ValueError if it is no file of the checks."""
    kept, _ = _parsed(path)
    return Kept(path=path, card=kept["card"], scale=kept["scale"])


def _parsed(path: Path) -> tuple[dict[str, Any], list[Outcome]]:
    try:
        kept = json.loads(path.read_text())
        outcomes = [Outcome.from_json(record) for record in kept["checks"]]
        _ = kept["card"]["name"], kept["scale"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a file of this check; name another: --out FILE") from error
    return kept, outcomes


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The file with the outcomes of one card: the last one of each check at each commit. `path` None keeps none."""

    path: Path | None
    card: Mapping[str, Any]
    scale: str

    def read(self) -> list[Outcome]:
        """The outcomes in the file. Raises ValueError if it holds anything else, or those of another card."""
        if self.path is None or not self.path.exists():
            return []
        kept, outcomes = _parsed(self.path)
        where = (kept["card"]["name"], kept["scale"])
        if where != (self.card["name"], self.scale):
            raise ValueError(f"{self.path}: it keeps {' '.join(where)}, not {self.card['name']} {self.scale}")
        return outcomes

    def add(self, outcome: Outcome) -> None:
        """Writes the outcome in place of that of the same check and commit; the file is whole at any moment."""
        if self.path is None:
            return
        others = [kept for kept in self.read() if _key(kept) != _key(outcome)]
        checks = [kept.as_json() for kept in (*others, outcome)]
        text = json.dumps({"card": self.card, "scale": self.scale, "checks": checks}, indent=2)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        partial.write_text(text + "\n")
        partial.replace(self.path)

    def done(self, facts: Mapping[str, Any]) -> dict[str, Outcome]:
        """Check -> its outcome, of those that ended well at this commit with this torch."""
        return {
            kept.check: kept
            for kept in self.read()
            if kept.status == "done" and _measured_with(kept.facts) == _measured_with(facts)
        }


def _key(outcome: Outcome) -> tuple[str, str | None]:
    return outcome.check, outcome.facts["commit"]


def _measured_with(facts: Mapping[str, Any]) -> tuple[str, str]:
    return facts["commit"], facts["versions"]["torch"]


def results(outcomes: Sequence[Outcome], kept: Kept) -> dict[str, Any]:
    """The JSON object of a run."""
    return {
        "card": kept.card,
        "scale": kept.scale,
        "held": sum(outcome.held for outcome in outcomes),
        "missed": sum(outcome.missed for outcome in outcomes),
        "seconds": round(sum(outcome.seconds for outcome in outcomes), 1),
        "checks": [outcome.as_json() for outcome in outcomes],
    }


def table(outcomes: Sequence[Outcome], width: int | None = None) -> str:
    """The figures, and what failed and was skipped, in lines of at most `width` columns (the terminal's, up to 80)."""
    return "\n".join([header(width), *(rows(outcome, width) for outcome in outcomes)])


def header(width: int | None = None) -> str:
    """The first two lines of the table."""
    width = _columns(width)
    return _line(width, "check", "figure", "found", "bar", "held", "s") + "\n" + "-" * width


def rows(outcome: Outcome, width: int | None = None) -> str:
    """The lines of one check."""
    width, lines = _columns(width), list[str]()
    for figure in outcome.figures:
        name = f"{figure.name}, {figure.unit}" if figure.unit else figure.name
        held = {True: "yes", False: "NO", None: ""}[figure.held]
        seconds = f"{figure.seconds:.1f}"
        lines.append(_line(width, figure.check, name, as_number(figure.value), _bar(figure), held, seconds))
    notes = [f"skipped: {line}" for line in outcome.skipped]
    if outcome.status != "done":
        notes.append(f"{outcome.status.upper()}: {outcome.message}")
    for note in notes:
        lines += textwrap.wrap(f"{outcome.check:<10} {note}", width, subsequent_indent=" " * 11)
    return "\n".join(lines)


def _columns(width: int | None) -> int:
    return min(WIDTH, width or shutil.get_terminal_size((WIDTH, 24)).columns)


def _line(width: int, check: str, name: str, found: str, bar: str, held: str, seconds: str) -> str:
    room = max(10, width - 46)
    return f"{check:<10.10} {name:<{room}.{room}} {found:>9} {bar:>11} {held:>4} {seconds:>6}"


def _bar(figure: Figure) -> str:
    parts = [
        f"{sign} {as_number(bound)}"
        for sign, bound in ((">=", figure.at_least), ("<=", figure.at_most))
        if bound is not None
    ]
    return " ".join(parts)


def as_number(value: float, percent: bool = False) -> str:
    """A number as tables show it: `1,234`, `0.0123`; with `percent`, `12 %`."""
    if percent:
        return f"{100 * value:.0f} %"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
