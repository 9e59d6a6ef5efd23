"""Measured figures as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sleuth.evaluation.intervals import Measured


def print_figures(title: str, figures: Mapping[str, Measured]) -> None:
    """One line a figure: value, 95 % interval and number of draws, on stdout."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title, box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("value", "95 % interval", "n"):
        table.add_column(heading, justify="right")
    for name, figure in figures.items():
        interval = f"{_shown(figure.low)} to {_shown(figure.high)}" if figure.n else ""
        table.add_row(name, _shown(figure.value), interval, f"{figure.n:,}")
    Console().print(table)


def _shown(value: float | None) -> str:
    return "missing" if value is None else f"{value:.3f}"
