"""What verbs print: one JSON object, or lines and tables in which every number is whole. Columns of a table that do not
fit into the terminal follow in a table below."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sleuth.host.escapes import folded

if TYPE_CHECKING:
    from sleuth.evaluation.intervals import Measured

LABEL, HEADING = 20, 17
"""Characters of a label and of a heading's word that are kept on one line, if numbers leave room for no more."""
GAP = 2
"""Spaces of a column beside its text."""
NO_VALUE: Mapping[str, float | None] = {"value": None}
"""A figure of a set that has no episode with a score."""


def show(as_json: bool, record: Mapping[str, Any], *lines: str) -> None:
    """Prints the record as one JSON object, or else the lines."""
    typer.echo(json.dumps(record) if as_json else "\n".join(lines))


def print_notes(notes: Iterable[str]) -> None:
    """Prints notes on stderr."""
    for note in notes:
        typer.echo(folded(f"note: {note}", sys.stderr), err=True)


def count_of(number: int, noun: str) -> str:
    """`1 stage`, `1,200 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A heading and the cells below it, which may have several lines: `Column(heading="EM", cells=("0.458",))`. The
    `footer` stands below all. Cells of words, `is_text`, may be folded."""

    heading: str
    cells: Sequence[str]
    footer: str = ""
    is_text: bool = False

    @property
    def least(self) -> int:
        """The width that cuts no number, and no word of the heading that is not too long itself."""
        cells = min(self._longest_line, LABEL) if self.is_text else self._longest_line
        return max([1, cells, *(min(len(word), HEADING) for word in self.heading.split())])

    @property
    def whole(self) -> int:
        """The width at which nothing is folded."""
        return max(self.least, self._longest_line, *map(len, self.heading.split("\n")))

    @property
    def _longest_line(self) -> int:
        return max(len(line) for cell in (*self.cells, self.footer) for line in cell.split("\n"))


def print_columns(
    labels: Sequence[str], columns: Sequence[Column], *, heading: str = "", footer: str = "", title: str | None = None
) -> None:
    """Prints one row for each label, with `heading` above the labels and `footer` below. Labels may be folded."""
    from rich import box
    from rich.table import Table

    from sleuth.runs.progress import Console

    console = Console()
    whole_label = max(len(line) for text in (*labels, heading, footer, " ") for line in text.split("\n"))
    for some in _groups(columns, console.width - min(whole_label, LABEL) - GAP):
        spare = console.width - GAP - sum(column.least + GAP for column in some)
        label = min(whole_label, max(spare, 1))
        spare -= label
        has_footer = any(column.footer for column in columns)
        table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_footer=has_footer)
        table.add_column(heading, footer, width=label, overflow="fold")
        for column in some:
            more = min(spare, column.whole - column.least)
            spare -= more
            side, width = "left" if column.is_text else "right", column.least + more
            table.add_column(column.heading, column.footer, justify=side, width=width, overflow="fold")
        for at, text in enumerate(labels):
            table.add_row(text, *(column.cells[at] for column in some))
        console.print(table)


def _groups(columns: Sequence[Column], room: int) -> Iterator[list[Column]]:
    """The columns in order, as many at once as fit into `room` characters, and at least one."""
    some: list[Column] = []
    for column in columns:
        if some and sum(one.least + GAP for one in [*some, column]) > room:
            yield some
            some = []
        some.append(column)
    yield some


# -- measured figures --------------------------------------------------------------------------------------------------


def show_measured(contents: Mapping[str, Any], out: Path | None, as_json: bool, lines: Callable[[], None]) -> None:
    """Prints the contents of an evaluation file without its records, as one JSON object or by `lines`, and then writes
    them to `out`, so that a file that cannot be written loses no figure."""
    from sleuth.runs.eval_file import write_eval

    if as_json:
        typer.echo(json.dumps({name: value for name, value in contents.items() if name not in ("records", "protocol")}))
    else:
        lines()
    if out is not None:
        write_eval(out, contents)


def table_cell(figure: Measured | None, digits: int = 3) -> str:
    """A cell of a table: `0.458` over `0.44 to 0.47`; empty where there is no such figure."""
    if figure is None:
        return ""
    return "missing" if figure.value is None else f"{figure.value:.{digits}f}\n{figure.low:.2f} to {figure.high:.2f}"


def with_interval(figure: Measured | None, absent: str = "") -> str:
    """`0.94 (0.80 to 0.98)`; `absent` where nothing was measured."""
    return absent if figure is None else figure.formatted(".2f", unmeasured=absent)


def print_figures(title: str, figures: Mapping[str, Measured]) -> None:
    """Prints one line per figure: value, 95 % interval and number of draws."""
    measured = list(figures.values())
    intervals = [f"{_number(one.low)} to {_number(one.high)}" if one.n else "" for one in measured]
    columns = [
        Column(heading="value", cells=[_number(one.value) for one in measured]),
        Column(heading="95 % interval", cells=intervals),
        Column(heading="n", cells=[f"{one.n:,}" for one in measured]),
    ]
    print_columns(list(figures), columns, heading=title)


def print_measured(title: str, rows: Mapping[str, Mapping[str, Measured]], columns: Mapping[str, str]) -> None:
    """Prints one line per row, the figures of the columns (heading by name) over their intervals, and the n of the
    row's first figure."""
    shown = [
        Column(heading=heading, cells=[table_cell(row.get(name)) for row in rows.values()])
        for name, heading in columns.items()
    ]
    counts = Column(heading="n", cells=[f"{next(iter(row.values())).n:,}" for row in rows.values()])
    typer.echo(title)
    print_columns([*rows], [*shown, counts])


def print_sets(title: str, suite: Mapping[str, Any]) -> None:
    """Prints a suite's figures by set, each over its 95 % interval, and their unweighted mean; `suite` is the contents
    of its evaluation file."""
    sets = suite["sets"]
    questions = [figures["questions"] for figures in sets.values()]
    columns = [Column(heading="n", cells=[f"{count:,}" for count in questions], footer=f"{sum(questions):,}")]
    for key, heading in _set_columns(suite).items():
        cells = [_set_cell(key, figures.get(key, NO_VALUE)) for figures in sets.values()]
        columns.append(Column(heading=heading, cells=cells, footer=_set_cell(key, suite[key])))
    print_columns(list(sets), columns, heading="set", footer=f"mean of {len(sets)}", title=title)
    if missing := [name for name, figures in sets.items() if figures["missing"]["value"]]:
        typer.echo(f"some verdicts are missing in {', '.join(missing)}: they are left out, not counted as wrong")


def _set_columns(suite: Mapping[str, Any]) -> dict[str, str]:
    """The headings of the figures, those that lead first. A score takes the place of sub-match, so that 80 columns
    do."""
    from sleuth.evaluation.figures import figures, scores_in

    headings = {row.name: row.heading for row in figures() if row.heading}
    scores = {key: key.removeprefix("score_") for key in scores_in([suite])}
    leads = {key: name for key, name in scores.items() if key in suite.get("headline", ())}
    if scores:
        headings.pop("sub_match", None)
    return {**leads, "em": headings.pop("em"), **scores} | headings


def _set_cell(key: str, figure: Mapping[str, float | None]) -> str:
    """`0.458` over `0.44-0.47`; tokens are rounded."""
    if figure["value"] is None:
        return "missing"
    digits, bound = (0, 0) if key == "response_tokens_mean" else (3, 2)
    return f"{figure['value']:.{digits}f}\n{figure['low']:.{bound}f}-{figure['high']:.{bound}f}"


def _number(value: float | None) -> str:
    return "missing" if value is None else f"{value:.3f}"
