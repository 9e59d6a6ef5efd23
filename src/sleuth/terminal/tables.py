"""Tables in which every number is whole: columns that do not fit into the terminal follow in a table below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

LABEL, HEADING = 20, 17
"""Characters of a label and of a heading's word that are kept on one line, if numbers leave room for no more."""
GAP = 2
"""Spaces of a column beside its text."""


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
    from sleuth.runs.progress import Console

    console = Console()
    for table in fitting_tables(labels, columns, console.width, heading=heading, footer=footer, title=title):
        console.print(table)


def fitting_tables(
    labels: Sequence[str],
    columns: Sequence[Column],
    width: int,
    *,
    heading: str = "",
    footer: str = "",
    title: str | None = None,
) -> Iterator[Table]:
    """The tables of `print_columns` for a terminal of `width` characters."""
    from rich import box
    from rich.table import Table

    whole_label = max(len(line) for text in (*labels, heading, footer, " ") for line in text.split("\n"))
    for some in _groups(columns, width - min(whole_label, LABEL) - GAP):
        left = width - GAP - sum(column.least + GAP for column in some)
        table = Table(
            title=title,
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            show_footer=any(column.footer for column in columns),
        )
        label = min(whole_label, max(left, 1))
        table.add_column(heading, footer, width=label, overflow="fold")
        left -= label
        for column in some:
            more = min(left, column.whole - column.least)
            left -= more
            table.add_column(
                column.heading,
                column.footer,
                justify="left" if column.is_text else "right",
                width=column.least + more,
                overflow="fold",
            )
        for at, text in enumerate(labels):
            table.add_row(text, *(column.cells[at] for column in some))
        yield table


def _groups(columns: Sequence[Column], room: int) -> Iterator[list[Column]]:
    """The columns in order, as many at once as fit into `room` characters, and at least one."""
    some: list[Column] = []
    for column in columns:
        if some and sum(one.least + GAP for one in [*some, column]) > room:
            yield some
            some = []
        some.append(column)
    yield some
