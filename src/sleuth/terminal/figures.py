"""Prints measured figures as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from sleuth.terminal.tables import Column, print_columns

if TYPE_CHECKING:
    from sleuth.evaluation.intervals import Measured


def measured_in(contents: Mapping[str, Any]) -> dict[str, Measured]:
    """The measured figures of an evaluation file's contents, by name."""
    from sleuth.evaluation.intervals import Measured

    figures = {name: value for name, value in contents.items() if isinstance(value, dict) and "low" in value}
    return {name: Measured(**figure) for name, figure in figures.items()}


def table_cell(figure: Measured | None) -> str:
    """A cell of a table: `0.458` over `0.44 to 0.47`; empty where there is no such figure."""
    if figure is None:
        return ""
    if figure.value is None:
        return "missing"
    return f"{figure.value:.3f}\n{figure.low:.2f} to {figure.high:.2f}"


def print_figures(title: str, figures: Mapping[str, Measured]) -> None:
    """Prints one line per figure: value, 95 % interval and number of draws."""
    found = list(figures.values())
    intervals = [f"{_number(one.low)} to {_number(one.high)}" if one.n else "" for one in found]
    columns = [
        Column(heading="value", cells=[_number(one.value) for one in found]),
        Column(heading="95 % interval", cells=intervals),
        Column(heading="n", cells=[f"{one.n:,}" for one in found]),
    ]
    print_columns(list(figures), columns, heading=title)


NO_VALUE: Mapping[str, float | None] = {"value": None}
"""A figure of a set that has no episode with a score."""


def print_sets(title: str, suite: Mapping[str, Any]) -> None:
    """Prints a suite's figures by set, each over its 95 % interval, and their unweighted mean; `suite` is the contents
    of its evaluation file."""
    sets, shown = suite["sets"], _set_columns(suite)
    asked = [figures["questions"] for figures in sets.values()]
    columns = [Column(heading="n", cells=[f"{count:,}" for count in asked], footer=f"{sum(asked):,}")]
    for key, heading in shown.items():
        cells = [_set_cell(key, figures.get(key, NO_VALUE)) for figures in sets.values()]
        columns.append(Column(heading=heading, cells=cells, footer=_set_cell(key, suite[key])))
    print_columns(list(sets), columns, heading="set", footer=f"mean of {len(sets)}", title=title)
    missing = [name for name, figures in suite["sets"].items() if figures["missing"]["value"]]
    if missing:
        typer.echo(f"some verdicts are missing in {', '.join(missing)}: they are left out, not counted as wrong")


def _set_columns(suite: Mapping[str, Any]) -> dict[str, str]:
    """The headings of the figures, those that lead first. A score takes the place of sub-match, so that 80 columns
    do."""
    from sleuth.evaluation.figures import figures, scores_in

    headings = {row.name: row.heading for row in figures() if row.heading}
    scores = {key: key.removeprefix("score_") for key in scores_in([suite])}
    leads = {key: name for key, name in scores.items() if key in suite.get("headline", ())}
    return {**leads, "em": headings.pop("em"), **scores} | {
        key: heading for key, heading in headings.items() if not scores or key != "sub_match"
    }


def _set_cell(key: str, figure: Mapping[str, float | None]) -> str:
    """`0.458` over `0.44-0.47`; tokens are rounded."""
    if figure["value"] is None:
        return "missing"
    places = (0, 0) if key == "response_tokens_mean" else (3, 2)
    return f"{figure['value']:.{places[0]}f}\n{figure['low']:.{places[1]}f}-{figure['high']:.{places[1]}f}"


def _number(value: float | None) -> str:
    return "missing" if value is None else f"{value:.3f}"
