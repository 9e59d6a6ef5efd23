"""Criteria for each question, written by a teacher and kept if they separate good answers from spoiled ones."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sleuth.cite.rubric_card import SEPARATE, rubric_card, separated_shares
from sleuth.cite.rubric_reward import mean_flipped
from sleuth.cite.rubric_writer import KINDS, PROMPT, RubricWriter
from sleuth.data.questions import task_from_row
from sleuth.data.rows import Row, read_rows
from sleuth.evaluation.intervals import Measured
from sleuth.host.atomic import write_text
from sleuth.judges.cache import NamedJudge
from sleuth.judges.judge_prompts import InvalidAnswerError
from sleuth.judges.pool import NoAnswerError
from sleuth.types import Case, Judge, Rubric, SleuthError, Task

ANSWER_TAG = re.compile(r"</?answer>")
KEY = "rubrics_of"
"""Key of a written row that names its question: rows of some layouts have no id but their position."""
MIN_SEPARATED = 0.5
"""Share of spoiled answers that criteria must score below the good one to be kept."""

Separation = Mapping[str, bool]
"""By the way of spoiling: whether the criteria scored the spoiled answer lower."""


@dataclass(slots=True, kw_only=True)
class Annotated:
    """Counts of rows: `kept` with new criteria, `left_out` because the criteria do not separate good from spoiled
    answers, `known` from an earlier call; and rows without criteria by `reasons`. `separated` has the rows checked in
    this call."""

    kept: int = 0
    left_out: int = 0
    known: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    separated: list[Separation] = field(default_factory=list)

    def shares(self) -> dict[str, Measured]:
        """By the way of spoiling: the share of good answers that scored higher."""
        return separated_shares(self.separated)

    def as_json(self) -> dict[str, Any]:
        """The record as plain values."""
        return {
            "kept": self.kept,
            "left_out": self.left_out,
            "known": self.known,
            "without": dict(self.reasons),
            "separated": {way: measured.as_json() for way, measured in self.shares().items()},
        }


def annotate_rubrics(
    data: Path,
    out: Path,
    writer: RubricWriter,
    judge: NamedJudge | None,
    *,
    limit: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Annotated:
    """Writes the rows of `data` to `out` (.jsonl) with criteria from a teacher, each row as soon as it is done. Called
    again, it skips rows that were written and retries those that failed. A card of all rows is written beside `out`.

    With a `judge`, criteria are tried on the row's own answer and on spoiled ones: rows whose criteria score fewer than
    MIN_SEPARATED of these lower go to a file beside `out`. A row without a verdict is retried in the next call. Raises
    SleuthError for a malformed row, for an `out` with other contents, and for a judge if no row has an answer.
    """
    if not out.name.endswith(".jsonl"):
        raise SleuthError(f"--out {out}: should end in .jsonl")
    rows = _tasks(data)[:limit]
    repeated = [id_ for id_, times in Counter(task.id for _, task in rows).items() if times > 1]
    if repeated:
        raise SleuthError(f"{data}: id {repeated[0]!r} is used by several rows; ids should be unique")
    if judge is not None and not any(task.reference for _, task in rows):
        raise SleuthError(
            f"{data}: no row has an `answer`, so a judge has nothing to try criteria on; leave out --judge"
        )
    rejected = out.with_name(out.name.removesuffix(".jsonl") + ".left_out.jsonl")
    done = _written(out) | _written(rejected)
    due = [(row, task) for row, task in rows if task.id not in done]
    found = Annotated(known=len(rows) - len(due))
    answers = [task.reference for _, task in rows if task.reference]

    async def one(row: Row, task: Task) -> None:
        try:
            rubrics = await writer.write(task)
            separation = await _separation(task, rubrics, _other(task, answers), judge)
        except (NoAnswerError, InvalidAnswerError) as error:
            found.reasons[str(error)] += 1
        else:
            found.separated += [separation] if separation else []
            separates = not separation or sum(separation.values()) >= MIN_SEPARATED * len(separation)
            found.kept, found.left_out = found.kept + separates, found.left_out + (not separates)
            _append(out if separates else rejected, row, task, rubrics, separation)
        progress(found.kept + found.left_out + found.reasons.total(), len(due))

    async def every() -> None:
        await asyncio.gather(*(one(row, task) for row, task in due))

    asyncio.run(every())
    if out.exists():
        _write_card(out, rejected, data, writer, judge)
    return found


def _write_card(out: Path, rejected: Path, data: Path, writer: RubricWriter, judge: NamedJudge | None) -> None:
    """Writes what `out` and `rejected` hold, those of earlier calls included, as OUT.md."""
    kept, left_out = ([row for _, row in read_rows(file)] if file.exists() else [] for file in (out, rejected))
    card = rubric_card(
        out.name,
        kept,
        left_out,
        teacher=writer.model,
        source=str(data),
        source_sha256=hashlib.sha256(data.read_bytes()).hexdigest(),
        prompt_sha256=hashlib.sha256(PROMPT.encode()).hexdigest(),
        judge=judge.identity if judge is not None else None,
    )
    write_text(out.with_suffix(".md"), card)


async def _separation(task: Task, rubrics: Sequence[Rubric], other: str, judge: Judge | None) -> Separation:
    """Whether the criteria score each spoiled answer lower; empty without a judge. Raises NoAnswerError if a verdict is
    missing."""
    if judge is None or not task.reference:
        return {}
    good_answer = ANSWER_TAG.sub("", task.reference).strip()
    worse = spoiled(good_answer, ANSWER_TAG.sub("", other).strip())
    answers = [good_answer, *worse.values()]
    evidence = task.evidence.output if task.evidence is not None else ""
    cases = [
        Case(question=task.question, evidence=evidence, claim=answer, criterion=rubric.description)
        for answer in answers
        for rubric in rubrics
    ]
    scores = iter([verdict.score for verdict in await judge.judge(cases)])
    good, *spoiled_scores = [mean_flipped([(rubric.wanted, next(scores)) for rubric in rubrics], True) for _ in answers]
    if good is None or None in spoiled_scores:
        raise NoAnswerError("the judge gave no verdict on an answer that the criteria were tried on")
    return {way: score is not None and score < good for way, score in zip(worse, spoiled_scores, strict=True)}


def _other(task: Task, answers: Sequence[str]) -> str:
    """The next answer in the file, cyclically."""
    if task.reference not in answers:
        return ""
    return answers[(answers.index(task.reference) + 1) % len(answers)]


def _tasks(file: Path) -> list[tuple[Row, Task]]:
    return [(row, task_from_row(row, where)) for where, row in read_rows(file)]


def _written(file: Path) -> set[str]:
    """The questions of rows that an earlier call wrote. An incomplete last line is removed if the file is ours."""
    if not file.exists():
        return set()
    text = file.read_text(encoding="utf-8", errors="replace")
    *lines, rest = text.split("\n")
    found = {_question(line, f"{file}:{number}") for number, line in enumerate(lines, start=1)}
    if rest:
        if not lines and KEY not in rest:
            raise SleuthError(_foreign(f"{file}:1"))
        write_text(file, text.removesuffix(rest))
    return found


def _question(line: str, where: str) -> str:
    try:
        return str(json.loads(line)[KEY])
    except (ValueError, KeyError, TypeError):
        raise SleuthError(_foreign(where)) from None


def _foreign(where: str) -> str:
    return f"{where}: has no `{KEY}`, so this file was not written by annotate; name a new one with --out"


def _append(file: Path, row: Row, task: Task, rubrics: Sequence[Rubric], separation: Separation) -> None:
    """Appends the row with its criteria in the layout that `sleuth.cite.rows` reads. Its question comes first, so an
    incomplete line still names it."""
    table: dict[str, list[dict[str, str]]] = {key: [] for key in KINDS}
    for rubric in rubrics:
        key = next(key for key, wanted in KINDS.items() if wanted == rubric.wanted)
        table[key].append({"title": rubric.title, "description": rubric.description})
    checked = {SEPARATE: dict(separation)} if separation else {}
    with file.open("a", encoding="utf-8") as lines:
        named = {KEY: task.id} | dict(row) | {KEY: task.id, "rubrics": table, **checked}
        lines.write(json.dumps(named, ensure_ascii=False) + "\n")


VERB = re.compile(r"\b(is|are|was|were|has|had|can|could|will|would)\b(?! not)")


def another(answer: str, other: str) -> str:
    """The answer to another question."""
    return other


def half(answer: str, other: str) -> str:
    """The first half of its words."""
    words = answer.split()
    return " ".join(words[: len(words) // 2])


def denied(answer: str, other: str) -> str:
    """Negates each auxiliary verb."""
    return VERB.sub(r"\1 not", answer)


def numbers_changed(answer: str, other: str) -> str:
    """Changes every digit outside tags."""
    parts = re.split(r"(<[^<>]*>)", answer)
    return "".join(part if part.startswith("<") else re.sub(r"\d", _next_digit, part) for part in parts)


def _next_digit(digit: re.Match[str]) -> str:
    return str((int(digit[0]) + 3) % 10)


WAYS: dict[str, Callable[[str, str], str]] = {
    "another": another,
    "half": half,
    "denied": denied,
    "numbers_changed": numbers_changed,
}
"""Functions of (good answer, answer to another question), by name."""


def spoiled(answer: str, other: str) -> dict[str, str]:
    """The spoiled answers by way, without empty and unchanged ones."""
    texts = {name: way(answer, other) for name, way in WAYS.items()}
    return {name: text for name, text in texts.items() if text.strip() and text != answer}
