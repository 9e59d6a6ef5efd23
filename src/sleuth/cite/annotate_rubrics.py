"""Criteria for each question, written by a teacher and kept if they separate good answers from spoiled ones."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from sleuth import __version__
from sleuth.cite.rows import rubric_table
from sleuth.cite.rubric_reward import mean_flipped
from sleuth.data.questions import task_from_row
from sleuth.data.rows import Row, finished_lines, read_rows
from sleuth.evaluation.intervals import Measured, share
from sleuth.host.atomic import write_text
from sleuth.judges.cache import NamedJudge
from sleuth.judges.http import JsonClient
from sleuth.judges.judge_prompts import InvalidAnswerError, closed_object, json_object, prompt_text, tagged_block
from sleuth.judges.pool import NoAnswerError
from sleuth.types import Case, Judge, Rubric, SleuthError, Task

ANSWER_TAG = re.compile(r"</?answer>")
KEY = "rubrics_of"
"""Key of a written row that names its question: rows of some layouts have no id but their position."""
SEPARATE = "rubrics_separate"
"""Key of a written row with its `Separation`; absent if no judge tried its criteria."""
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

    def as_json(self) -> dict[str, Any]:
        """The record as plain values, with the shares in place of the rows."""
        return {
            "kept": self.kept,
            "left_out": self.left_out,
            "known": self.known,
            "without": dict(self.reasons),
            "separated": {way: measured.as_json() for way, measured in separated_shares(self.separated).items()},
        }


def separated_shares(separated: Sequence[Separation]) -> dict[str, Measured]:
    """By the way of spoiling an answer: the share of good answers whose criteria scored higher."""
    ways = dict.fromkeys(way for row in separated for way in row)
    return {way: share([float(row[way]) for row in separated if way in row]) for way in ways}


def annotate_rubrics(
    data: Path,
    out: Path,
    teacher: JsonClient,
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
    rows = [(row, task_from_row(row, where)) for where, row in read_rows(data)][:limit]
    repeated = [id_ for id_, times in Counter(task.id for _, task in rows).items() if times > 1]
    if repeated:
        raise SleuthError(f"{data}: id {repeated[0]!r} is used by several rows; ids should be unique")
    answers = [task.reference for _, task in rows if task.reference]
    if judge is not None and not answers:
        raise SleuthError(
            f"{data}: no row has an `answer`, so a judge has nothing to try criteria on; leave out --judge"
        )
    rejected = out.with_name(out.name.removesuffix(".jsonl") + ".left_out.jsonl")
    done = {*_written(out), *_written(rejected)}
    due = [(row, task) for row, task in rows if task.id not in done]
    made = Annotated(known=len(rows) - len(due))

    async def one(row: Row, task: Task) -> None:
        try:
            rubrics = await teacher.ask(rubric_question(task))
            separation = await _separation(task, rubrics, answers, judge)
        except (NoAnswerError, InvalidAnswerError) as error:
            made.reasons[str(error)] += 1
        else:
            made.separated += [separation] if separation else []
            separates = not separation or sum(separation.values()) >= MIN_SEPARATED * len(separation)
            made.kept, made.left_out = made.kept + separates, made.left_out + (not separates)
            _append(out if separates else rejected, row, task, rubrics, separation)
        progress(made.kept + made.left_out + made.reasons.total(), len(due))

    async def every() -> None:
        await asyncio.gather(*(one(row, task) for row, task in due))

    asyncio.run(every())
    if out.exists():
        model = str(teacher.settings["model"])
        write_text(out.with_suffix(".md"), _card(out, rejected, data, model, judge.identity if judge else None))
    return made


def _card(out: Path, rejected: Path, data: Path, teacher: str, judge: str | None) -> str:
    """The README of the rows, those of earlier calls included, in markdown, with all figures computed from them."""
    rows, left_out = ([row for _, row in read_rows(file)] if file.exists() else [] for file in (out, rejected))
    facts = {
        "wanted criteria a row": f"{fmean(len(row['rubrics']['positive_rubrics']) for row in rows):.2f}",
        "unwanted criteria a row": f"{fmean(len(row['rubrics']['negative_rubrics']) for row in rows):.2f}",
        "rows with an answer": f"{sum(bool(row.get('answer')) for row in rows):,}",
        f"{data}, sha256": f"`{hashlib.sha256(data.read_bytes()).hexdigest()}`",
        "prompt of the teacher, sha256": f"`{hashlib.sha256(PROMPT.encode()).hexdigest()}`",
    }
    lines = [
        *(f"# {out.name}", ""),
        f"{len(rows):,} rows of `{data}` with criteria by `{teacher}`, made with Sleuth {__version__}.",
        *("", "| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in facts.items()), ""),
    ]
    if shares := separated_shares([row[SEPARATE] for row in (*rows, *left_out) if SEPARATE in row]):
        by = f" by the judge `{judge}`" if judge is not None else ""
        lines += [
            f"The criteria were tried{by} on each row's own answer and on spoiled ones. {len(left_out):,} rows were "
            "left out, whose criteria score fewer than half of these lower.",
            *("", "| an answer spoiled so | scored below the row's own, of so many |", "|---|---|"),
            *(f"| {way.replace('_', ' ')} | {one.formatted('.2f')} of {one.n:,} |" for way, one in shares.items()),
        ]
    else:
        lines.append("No judge tried these criteria.")
    lines += ["", "The rows hold text of their source, under whatever licence that has."]
    return "\n".join(lines) + "\n"


async def _separation(task: Task, rubrics: Sequence[Rubric], answers: Sequence[str], judge: Judge | None) -> Separation:
    """Whether the criteria score each spoiled answer lower; empty without a judge. Raises NoAnswerError if a verdict is
    missing."""
    if judge is None or not task.reference:
        return {}
    other = answers[(answers.index(task.reference) + 1) % len(answers)]  # the next one in the file
    good_answer = ANSWER_TAG.sub("", task.reference).strip()
    worse = spoiled(good_answer, ANSWER_TAG.sub("", other).strip())
    evidence = task.evidence.output if task.evidence is not None else ""
    cases = [
        Case(question=task.question, evidence=evidence, claim=answer, criterion=rubric.description)
        for answer in (good_answer, *worse.values())
        for rubric in rubrics
    ]
    scores = [verdict.score for verdict in await judge.judge(cases)]
    known = iter([score for score in scores if score is not None])
    if None in scores:
        raise NoAnswerError("the judge gave no verdict on an answer that the criteria were tried on")
    good, *bad = [mean_flipped([(rubric.wanted, next(known)) for rubric in rubrics], True) for _ in ("", *worse)]
    return {way: score < good for way, score in zip(worse, bad, strict=True)}


def _written(file: Path) -> list[str]:
    """The questions of rows that an earlier call wrote."""
    wrong = f"has no `{KEY}`, so this file was not written by annotate; name a new one with --out"
    return finished_lines(file, lambda row: str(row[KEY]), wrong)


def _append(file: Path, row: Row, task: Task, rubrics: Sequence[Rubric], separation: Separation) -> None:
    """Appends the row with its criteria in the layout that `sleuth.cite.rows` reads. Its question comes first, so an
    incomplete line still names it."""
    checked = {SEPARATE: dict(separation)} if separation else {}
    with file.open("a", encoding="utf-8") as lines:
        named = {KEY: task.id} | dict(row) | {KEY: task.id, "rubrics": rubric_table(rubrics), **checked}
        lines.write(json.dumps(named, ensure_ascii=False) + "\n")


VERB = re.compile(r"\b(is|are|was|were|has|had|can|could|will|would)\b(?! not)")
TAG_OR_DIGIT = re.compile(r"<[^<>]*>|\d")
WAYS: dict[str, Callable[[str, str], str]] = {
    "another": lambda answer, other: other,
    "half": lambda answer, other: " ".join(answer.split()[: len(answer.split()) // 2]),
    "denied": lambda answer, other: VERB.sub(r"\1 not", answer),
    "numbers_changed": lambda answer, other: TAG_OR_DIGIT.sub(_next_digit, answer),
}
"""How an answer is spoiled, by name: functions of the good answer and of that to another question."""


def _next_digit(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith("<") else str((int(found[0]) + 3) % 10)


def spoiled(answer: str, other: str) -> dict[str, str]:
    """The spoiled answers by way, without empty and unchanged ones."""
    texts = {name: way(answer, other) for name, way in WAYS.items()}
    return {name: text for name, text in texts.items() if text.strip() and text != answer}


MAX_CRITERIA = 5
"""Per task, of both kinds together."""
MAX_TITLE_WORDS = 12
KINDS = {"positive_rubrics": True, "negative_rubrics": False}
"""The keys of an answer, and whether their criteria are wanted."""
PROMPT = prompt_text("rubrics")
CRITERION = closed_object({"title": {"type": "string"}, "description": {"type": "string"}})
SCHEMA = closed_object({key: {"type": "array", "items": CRITERION, "maxItems": MAX_CRITERIA} for key in KINDS})
"""JSON schema of an answer; it cannot express the limit on both kinds together."""


@dataclass(frozen=True, kw_only=True)
class RubricQuestion:
    """The question to a teacher about a task, as `JsonClient` asks it."""

    message: str
    name: str = "rubrics"
    prompt: str = PROMPT
    entries: int = 1

    @property
    def schema(self) -> dict[str, Any]:
        """`SCHEMA`."""
        return SCHEMA

    def read(self, text: str) -> tuple[Rubric, ...]:
        """The criteria of an answer. Raises InvalidAnswerError for more than `MAX_CRITERIA`, for none that is wanted,
        and for one that is not exactly a title and a distinct description."""
        answer = json_object(text)
        if sorted(answer) != sorted(KINDS):
            raise InvalidAnswerError(f"the keys should be {' and '.join(KINDS)}, found {', '.join(answer) or 'none'}")
        rubrics = tuple(rubric for key, wanted in KINDS.items() for rubric in _criteria(answer[key], key, wanted))
        if len(rubrics) > MAX_CRITERIA:
            raise InvalidAnswerError(f"there should be {MAX_CRITERIA} criteria at most, found {len(rubrics)}")
        if not any(rubric.wanted for rubric in rubrics):
            raise InvalidAnswerError("there should be a positive criterion at least")
        if len({rubric.description.lower() for rubric in rubrics}) < len(rubrics):
            raise InvalidAnswerError("a criterion is there twice")
        return rubrics


def rubric_question(task: Task) -> RubricQuestion:
    """The question to a teacher about a task: its evidence and reasoning if any, the question, and a good answer."""
    parts = {"question": task.question, "good_answer": task.reference}
    if task.evidence is not None:
        parts = {"evidence": task.evidence.output, "reasoning": task.evidence.reasoning, **parts}
    return RubricQuestion(message="".join(tagged_block(name, text) for name, text in parts.items() if text))


def _criteria(entries: Any, key: str, wanted: bool) -> Iterator[Rubric]:
    if not isinstance(entries, list):
        raise InvalidAnswerError(f"{key} should be a list")
    for at, entry in enumerate(entries):
        texts = entry if isinstance(entry, dict) else {}
        are_texts = all(isinstance(text, str) and text.strip() for text in texts.values())
        if sorted(texts) != ["description", "title"] or not are_texts:
            raise InvalidAnswerError(f"{key}.{at} should have a title and a description, and nothing else")
        title, description = (" ".join(texts[name].split()) for name in ("title", "description"))
        if len(title.split()) > MAX_TITLE_WORDS:
            raise InvalidAnswerError(f"{key}.{at}.title should have two to six words")
        yield Rubric(title=title, description=description, wanted=wanted)
