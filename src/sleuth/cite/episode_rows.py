"""Refiner training rows from finished episodes: the search results of an agent, or the accepted answers of a
refiner."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from sleuth import __version__
from sleuth.answers.search_results import appears_in
from sleuth.cite.rows import row_of, snippets_of, tool_output_of
from sleuth.dialect import Dialect
from sleuth.episodes.protocol import ProtocolCard
from sleuth.evaluation.intervals import share
from sleuth.types import Action, Episode, Score

Row = dict[str, Any]
Answered = Sequence[tuple[Episode, Score]]

CITABLE = re.compile(r"[^\s,;|&<>\"'\[\](){}]+")
"""An id that can be cited in a list of ids."""


def rows_of_searches(answered: Answered, dialect: Dialect) -> list[Row]:
    """A row for every search with results: the agent's reasoning and the results. Golden answers are those of the
    question that appear in the results; whether the results answer it is unknown. Episodes whose history a chat
    template rewrote are left out."""
    return [row for episode, _ in answered for row in _search_rows(episode, dialect)]


def accepted_rows(answered: Answered, min_f1: float) -> list[Row]:
    """One row per task with its best accepted answer as the row's own; tasks without one are left out."""
    best: dict[str, tuple[Episode, Score]] = {}
    for episode, score in answered:
        current = best.get(episode.task.id)
        if is_accepted(score, min_f1) and (current is None or (score.value or 0) > (current[1].value or 0)):
            best[episode.task.id] = episode, score
    return [_with_answer(episode) for episode, _ in best.values()]


def is_accepted(score: Score, min_f1: float) -> bool:
    """Whether an answer is well formed, has a citation F1 of at least `min_f1` or rightly abstains, and is right as far
    as the data says."""
    cites = score.parts.get("citation_f1", 0.0) >= min_f1 or score.parts.get("right_abstention") == 1
    return score.value is not None and score.parts["well_formed"] == 1 and cites and score.parts.get("grounded", 1) == 1


def data_card(
    name: str,
    rows: Sequence[Row],
    answered: Answered,
    *,
    model: str,
    questions: str,
    questions_sha256: str,
    protocol: ProtocolCard,
    min_f1: float | None,
) -> str:
    """The README of a file of rows, in markdown, with all figures computed. `min_f1` is the bar for accepted answers,
    None for rows of searches."""
    tasks = len({episode.task.id for episode, _ in answered})
    lines = [
        *(f"# {name}", ""),
        f"{len(rows)} rows to refine, made with Sleuth {__version__}: {_WHAT[min_f1 is not None]} `{model}`, asked "
        f"{tasks} questions of `{questions}`.",
        *("", "| | |", "|---|---|"),
        *(f"| {key} | {value} |" for key, value in _facts(rows, answered, min_f1).items()),
        *([f"| claims judged by | `{protocol.scorer}` |"] if min_f1 is not None else []),
        f"| questions, sha256 | `{questions_sha256}` |",
        f"| protocol | {protocol.dialect.name}, prompt {protocol.prompt}, `{protocol.hash}` |",
        *("", "The rows hold text of the corpus that was searched, under whatever licence that has."),
    ]
    return "\n".join(lines) + "\n"


_WHAT = {True: "the accepted answers of", False: "the reasoning and the results of every search of"}


def _facts(rows: Sequence[Row], answered: Answered, min_f1: float | None) -> Mapping[str, str]:
    snippets = [float(len(snippets_of(row["tool_output"]))) for row in rows]
    words = [float(len(row["tool_output"].split())) for row in rows]
    facts = {"episodes": str(len(answered))}
    if min_f1 is not None:
        clusters = [episode.task.id for episode, _ in answered]
        accepted = share([float(is_accepted(score, min_f1)) for _, score in answered], clusters)
        shown = accepted.formatted(unmeasured="none")
        facts["accepted"] = f"{shown} of the episodes: well formed, citation F1 of {min_f1:g} or more, and right"
    if rows:
        facts |= {"snippets a row": f"{fmean(snippets):.1f}", "words a tool output": f"{fmean(words):.0f}"}
        facts["rows with golden answers"] = str(sum(bool(row["golden_answers"]) for row in rows))
    return facts


def _search_rows(episode: Episode, dialect: Dialect) -> Iterator[Row]:
    if len(episode.trajectories) > 1:
        return
    task, trajectory = episode.task, episode.trajectory
    turns = [segment.text for segment in trajectory.segments if segment.author == "policy"]
    for number, (at, action) in enumerate(zip(trajectory.action_turns, trajectory.actions, strict=True)):
        if action.kind == "search" and action.passages:
            turn = turns[at]
            texts = [f"{passage.title}\n{passage.text}" for passage in action.passages]
            yield {
                "id": f"{task.id}/{episode.sample}/{number}",
                "question": task.question,
                "reasoning": reasoning_before(turn, action, dialect),
                "tool_output": results_as_output(action),
                "golden_answers": [golden for golden in task.golden_answers if appears_in(golden, "\n".join(texts))],
                "type": task.kind,
                "data_source": task.source,
            }


def reasoning_before(turn: str, action: Action, dialect: Dialect) -> str:
    """The thought before a search; the query if there is none."""
    before = turn.partition(dialect.search.open)[0] if dialect.search.open in turn else ""
    thought = before.replace(dialect.think.open, " ").replace(dialect.think.close, " ").strip()
    return thought or f"I search for: {action.text}"


def results_as_output(action: Action) -> str:
    """The passages as a tool output, under their own ids, or under their ranks if an id is not citable or not
    unique."""
    ids = [passage.id for passage in action.passages]
    if len(set(ids)) < len(ids) or not all(map(CITABLE.fullmatch, ids)):
        ids = [str(rank) for rank in range(1, len(ids) + 1)]
    return tool_output_of([replace(p, id=id_) for id_, p in zip(ids, action.passages, strict=True)])


def _with_answer(episode: Episode) -> Row:
    answer = "".join(segment.text for segment in episode.trajectory.segments if segment.author == "policy")
    row = row_of(replace(episode.task, reference=answer.strip()))
    assert row is not None  # the task has a tool output
    return row
