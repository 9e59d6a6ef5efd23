"""What a corpus has of a set of questions at all: no retriever can find more."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sleuth.answers.match import normalise
from sleuth.data.hub import local_file
from sleuth.data.questions import require_questions, task_from_row
from sleuth.data.rows import read_rows
from sleuth.evaluation.intervals import Measured, share
from sleuth.types import Passage, SleuthError, Task

NOT_IN_TEXTS = {"yes", "no", "noanswer", "no answer"}
"""Answers that judge a question, and are no part of a text that supports them."""

NAMED = 5
"""Questions without an answer in the corpus that the report names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusReport:
    """The shares of `questions` for which the corpus of `passages` has what they need, with 95 % intervals.

    `answers`: any golden answer is in a passage, word for word after normalising as exact match does; questions that
    are answered by yes or no are left out and counted as `unsearchable`. `titles`: every supporting title that the data
    names is the title of a passage. `gold`: every gold id is the id of one. A share without questions that name such a
    thing is missing, n = 0. `missing`: the first few questions without an answer in the corpus.
    """

    passages: int
    questions: int
    unsearchable: int
    answers: Measured
    titles: Measured
    gold: Measured
    missing: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        """The fields, the shares as objects."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value.as_json() if isinstance(value, Measured) else value for name, value in values}


Needs = tuple[Task, tuple[str, ...]]
"""A question and the titles of the pages that support its answer."""


def read_needs(path: Path) -> list[Needs]:
    """The questions of a file. Titles are those of HotpotQA's `supporting_facts`, also
    below FlashRAG's `metadata`, or of a list `supporting_titles`. Raises SleuthError for a malformed row."""
    needs: list[Needs] = []
    for where, row in read_rows(local_file(path)):
        if not needs:
            require_questions(row, where)
        needs.append((task_from_row(row, where), tuple(dict.fromkeys(_titles(row, where)))))
    if not needs:
        raise SleuthError(f"{path}: no questions in this file")
    return needs


def check_corpus(
    passages: Iterable[Passage], needs: Sequence[Needs], progress: Callable[[int], None] = lambda done: None
) -> CorpusReport:
    """Reads all passages once; `progress` gets their number so far. Memory grows with the questions alone."""
    answers = {task.id: _answers(task) for task, _ in needs}
    phrases = _Phrases(answer for of_task in answers.values() for answer in of_task)
    wanted_titles = {_same_title(title) for _, titles in needs for title in titles}
    wanted_ids = {gold for task, _ in needs for gold in task.gold_passages}
    found, titles, ids, count = set[str](), set[str](), set[str](), 0
    for count, passage in enumerate(passages, start=1):
        phrases.find(normalise(f"{passage.title} {passage.text}").split(), found)
        if (title := _same_title(passage.title)) in wanted_titles:
            titles.add(title)
        if passage.id in wanted_ids:
            ids.add(passage.id)
        progress(count)
    searchable = [task for task, _ in needs if answers[task.id]]
    answered = [not found.isdisjoint(answers[task.id]) for task in searchable]
    return CorpusReport(
        passages=count,
        questions=len(needs),
        unsearchable=len(needs) - len(searchable),
        answers=share(answered),
        titles=share([{_same_title(title) for title in named} <= titles for _, named in needs if named]),
        gold=share([ids.issuperset(task.gold_passages) for task, _ in needs if task.gold_passages]),
        missing=tuple(task.question for task, has in zip(searchable, answered, strict=True) if not has)[:NAMED],
    )


class _Phrases:
    """Finds many phrases in texts at once, by their first words."""

    def __init__(self, phrases: Iterable[str]) -> None:
        self._by_first: dict[str, set[tuple[str, ...]]] = defaultdict(set)
        for phrase in phrases:
            first, *rest = phrase.split()
            self._by_first[first].add(tuple(rest))
        self._by_first.default_factory = None

    def find(self, words: Sequence[str], found: set[str]) -> None:
        """Adds the phrases that are in a text to `found`, and does not look for them again."""
        for at, first in enumerate(words):
            if first not in self._by_first:
                continue
            left = self._by_first[first]
            for rest in [rest for rest in left if tuple(words[at + 1 : at + 1 + len(rest)]) == rest]:
                left.discard(rest)
                found.add(" ".join((first, *rest)))
            if not left:
                del self._by_first[first]


def _answers(task: Task) -> list[str]:
    """The normalised golden answers that can be in a text."""
    answers = (normalise(answer) for answer in task.golden_answers)
    return [" ".join(answer.split()) for answer in answers if answer.strip() and answer not in NOT_IN_TEXTS]


def _titles(row: Mapping[str, Any], where: str) -> Iterable[str]:
    metadata = row.get("metadata")
    for holder in (row, metadata if isinstance(metadata, Mapping) else {}):
        facts = holder.get("supporting_facts")
        named = holder.get("supporting_titles")
        if isinstance(facts, Mapping):
            named = facts.get("title")
        elif facts is not None and named is None:  # HotpotQA's own files: [title, number of the sentence] each
            named = [fact[0] if len(fact) else None for fact in facts]
        if named is not None:
            titles = [title for title in named if isinstance(title, str)]
            if len(titles) < len(named):
                raise SleuthError(f"{where}: supporting titles should be a list of strings")
            return titles
    return ()


def _same_title(title: str) -> str:
    """A title without regard to case, spaces and underscores."""
    return " ".join(unicodedata.normalize("NFKC", title).casefold().replace("_", " ").split())
