"""`data.kind = "reading"`: questions with the place of their answer, and questions made from passages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat

from sleuth.recipe.data import DataFields
from sleuth.recipe.strict import FilePath, Row


class ReadingRecipe(DataFields):
    """Real questions with the passage and the place of their answer, and questions made from passages by leaving out a
    name, a number, a date or a noun phrase (clozes). A row is question, passage, the question again and the answer.
    Rows grow from single sentences to whole passages, and the share of clozes falls."""

    named: ClassVar[Mapping[str, str]] = {"questions": "file", "passages": "files", "index": "index"}
    rows: ClassVar[str] = "sleuth.read.rows"
    trainer: ClassVar[str] = "sleuth.read.rows_stage"
    kind: Literal["reading"]
    questions: FilePath
    """A file of questions: `question`, `golden_answers`, `gold_ids` (the passage), `answer_start` (the character of its
    text at which the first golden answer begins), and perhaps `data_source`."""
    passages: Annotated[Row[FilePath], Field(min_length=1)]
    """Files of passages: `id` and `contents` (`"Title"`, a line break, the text). Those of all questions must be among
    them; clozes are made from all but those of held-out articles."""
    index: FilePath | None = None
    """Folder of an index of these passages, written by `sleuth index`. A row is then a whole episode of the dialect
    "reading": the question, a run of its words as the query, the first three passages found, with the right one in the
    place of another if it was not found, the question again, and the answer with the words that follow it there; half
    of the rows end with the query. Absent: the right passage is given."""
    held_out: Annotated[Row[str], Field(min_length=1)]
    """Titles of articles that are not trained. Their questions measure exact match, given the gold passage (with
    `index`, among those found), after the last step, beside the answers of a sliding window (arXiv:1606.05250)."""
    mix: Annotated[dict[str, PositiveFloat], Field(min_length=1)] | None = None
    """Share of each source (`data_source`) among the real questions, as weights relative to one another; absent: every
    question is as likely."""
