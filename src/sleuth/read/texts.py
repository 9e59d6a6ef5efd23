"""`data.kind = "reading"`: questions with the place of their answer, and questions made from passages; read, checked,
and set apart by article."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat

from sleuth.data.questions import MAX_PROBLEMS, first_problems
from sleuth.data.rows import rows_and_faults, text_of, texts_of
from sleuth.data.spans import sentences
from sleuth.recipe.data import DataFields
from sleuth.recipe.strict import FilePath, Row
from sleuth.retrieval.corpus import read_corpus
from sleuth.retrieval.open_index import open_index
from sleuth.types import Passage, SleuthError


class ReadingRecipe(DataFields):
    """Real questions with the passage and the place of their answer, and questions made from passages by leaving out a
    name, a number, a date or a noun phrase (clozes). A row is question, sentence, the question again and the answer.
    The share of clozes falls."""

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
    "reading": the question, a run of its words as the query, the sentences that a search for it shows, with the right
    one in the place of another if it is not there, the question again, and the answer with the words that follow it
    there; half of the rows end with the query. Absent: the right sentence is given."""
    held_out: Annotated[Row[str], Field(min_length=1)]
    """Titles of articles that are not trained. Their questions measure exact match, given the sentence with the answer
    (with `index`, among those shown), after the last step, beside those of a sliding window (arXiv:1606.05250)."""
    mix: Annotated[dict[str, PositiveFloat], Field(min_length=1)] | None = None
    """Share of each source (`data_source`) among the real questions, as weights relative to one another; absent: every
    question is as likely."""


COLUMNS = ("question", "golden_answers", "gold_ids", "answer_start", "data_source")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingQuestion:
    """A question whose first golden answer begins at character `start` of the passage's text:
    `ReadingQuestion(question="Where was Ada Voss born?", answers=("Tarn",), passage=ada, start=21, source="squad")`."""

    question: str
    answers: tuple[str, ...]
    passage: Passage
    start: int
    source: str

    @property
    def end(self) -> int:
        """The character after the answer."""
        return self.start + len(self.answers[0])

    def of_sentence(self) -> ReadingQuestion:
        """The same question, its passage the sentence with the answer alone."""
        sentence, start, _ = sentence_with(self.passage, self.start, self.end)
        return replace(self, passage=sentence, start=start)


def sentence_with(passage: Passage, start: int, end: int) -> tuple[Passage, int, int]:
    """The sentence of a passage that has its characters [start, end), or those that have them, as a passage; and where
    they are in it."""
    bounds = sentences(passage.text)
    begin = max(begin for begin, _ in bounds if begin <= start)
    stop = min(stop for _, stop in bounds if stop >= end)
    return replace(passage, text=passage.text[begin:stop]), start - begin, end - begin


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingTexts:
    """What a reader trains on, and the questions about articles that it does not."""

    passages: tuple[Passage, ...]
    questions: tuple[ReadingQuestion, ...]
    held_out: tuple[ReadingQuestion, ...]


def read_reading_texts(data: ReadingRecipe) -> ReadingTexts:
    """The texts of a recipe. Raises SleuthError with a line for each problem of each file."""
    passages = read_passages(data.passages)
    questions = read_reading_questions(data.questions, passages)
    if problems := [*_problems(data, questions)]:
        raise SleuthError(*problems)
    titles = {*data.held_out}
    trained = [question for question in questions if question.passage.title not in titles]
    if not trained:
        raise SleuthError(f"{data.questions}: all questions are about held_out articles, and none is left to train")
    return ReadingTexts(
        passages=tuple(passage for passage in passages.values() if passage.title not in titles and passage.text),
        questions=tuple(trained),
        held_out=tuple(question for question in questions if question.passage.title in titles),
    )


def require_indexed(texts: ReadingTexts, index: Path) -> None:
    """Raises SleuthError unless the index has every passage of the texts, word for word: answers are copied from where
    their passage has them."""
    opened = open_index(index)
    for passage in (*texts.passages, *(question.passage for question in texts.held_out)):
        found = opened.passage(passage.id)
        if found is None or (found.title, found.text) != (passage.title, passage.text):
            other = "does not have" if found is None else "has another text for"
            raise SleuthError(
                f"{index}: the index {other} passage {passage.id!r} of data.passages; build it of these passages with "
                "`sleuth index`"
            )


def read_passages(files: Sequence[Path]) -> dict[str, Passage]:
    """The passages of several files by their ids. Raises SleuthError with a line for each problem of each file."""
    problems: list[str] = []
    passages: dict[str, Passage] = {}
    for file in files:
        try:
            for passage in read_corpus(file):
                if passages.setdefault(passage.id, passage) is not passage:
                    problems.append(f"{file}: id {passage.id!r} is also in another file of passages")
        except SleuthError as error:
            problems += map(str, error.args)
    if problems:  # else every question about a passage that could not be read would be one more
        raise SleuthError(*problems)
    return passages


def read_reading_questions(file: Path, passages: Mapping[str, Passage]) -> list[ReadingQuestion]:
    """The questions of a file about these passages. Raises SleuthError with a line for each of the first problems."""
    questions: list[ReadingQuestion] = []
    problems: list[str] = []
    rows = 0
    for where, row in rows_and_faults(file, COLUMNS):
        rows += 1
        try:
            if isinstance(row, SleuthError):
                raise row
            questions.append(_question(row, where, passages))
        except SleuthError as error:
            problems += map(str, error.args)
            if len(problems) >= MAX_PROBLEMS:
                break
    if problems:
        raise SleuthError(*first_problems(problems, rows, file))
    if not questions:
        raise SleuthError(f"{file}: no questions in this file")
    return questions


def _question(row: Mapping[str, Any], where: str, passages: Mapping[str, Passage]) -> ReadingQuestion:
    question = text_of(row, "question", where).strip()
    answers = texts_of(row.get("golden_answers"), "golden_answers", where)
    names = texts_of(row.get("gold_ids"), "gold_ids", where)
    start: Any = row.get("answer_start")
    if not answers or not names or not isinstance(start, int):
        raise SleuthError(f"{where}: a question to read for needs golden_answers, gold_ids and answer_start")
    if (passage := passages.get(names[0])) is None:
        raise SleuthError(f"{where}: passage {names[0]!r} is in none of the files of passages")
    if not start >= 0 or not passage.text.startswith(answers[0], start):
        found = passage.text[max(0, start) : max(0, start) + 20]
        raise SleuthError(
            f"{where}: at character {start} of passage {names[0]!r} stands {found!r}, not the answer {answers[0]!r}"
        )
    source = str(row.get("data_source") or "")
    return ReadingQuestion(question=question, answers=answers, passage=passage, start=start, source=source)


def _problems(data: ReadingRecipe, questions: list[ReadingQuestion]) -> Iterator[str]:
    """Names in the recipe that the files do not have."""
    titles = {question.passage.title for question in questions}
    sources = {question.source for question in questions if question.passage.title not in data.held_out}
    for key, wanted, known, what in (
        ("held_out", data.held_out, titles, "is about an article called"),
        ("mix", tuple(data.mix or ()), sources, "to train is of a source called"),
    ):
        for name in (name for name in wanted if name not in known):
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            yield f"data.{key}: no question of {data.questions} {what} {name!r}{meant}"
