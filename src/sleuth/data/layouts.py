"""Layouts of rows besides ours, which the families read (`Family.layouts`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sleuth import family
from sleuth.data.rows import Row
from sleuth.types import Evidence, Task, Thought


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionLayout:
    """Rows of questions that `fits` recognises, and what makes tasks of them; `where` is file:line for messages.

    `evidence_of` returns the tool output of a standard row, which then needs no golden answers; its reference is the
    row's `answer`. `row_of` is the inverse: the standard row of a task, or None for a task of another kind.
    `doubtful_citations` are the ids that a task's own answer cites in vain.
    """

    columns: tuple[str, ...]
    """The columns read from a parquet file, besides ours."""
    fits: Callable[[Row], bool]
    standard_row: Callable[[Row, str], Row]
    """The row in our layout."""
    message_of: Callable[[Row, str], str] | None = None
    """The user message of a row; None: that of its `prompt`."""
    evidence_of: Callable[[Row, str], Evidence] | None = None
    row_of: Callable[[Task], dict[str, Any] | None] = lambda task: None
    doubtful_citations: Callable[[Task], Iterable[str]] = lambda task: ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLayout:
    """Rows of texts with a `column` that contains a copy of the text with thoughts in it: `split` returns the text of
    the copy and its thoughts; None if it is a copy of another text."""

    column: str
    split: Callable[[str, str], tuple[str, tuple[Thought, ...]] | None]


def question_layouts() -> tuple[QuestionLayout, ...]:
    """The layouts of questions, in the order of the families."""
    return tuple(layout for layout in family.tables("layouts") if isinstance(layout, QuestionLayout))


def layout_of(row: Row) -> QuestionLayout | None:
    """The layout of a row; None for ours."""
    return next((layout for layout in reversed(question_layouts()) if layout.fits(row)), None)


def copy_layouts() -> list[CopyLayout]:
    """The layouts of copies with thoughts."""
    return [layout for layout in family.tables("layouts") if isinstance(layout, CopyLayout)]
