"""Rows to refine, made of what was played: every result of a search agent, or the answers of a refiner that may be
taught."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from sleuth import __version__
from sleuth.data.refiner import row_of, snippets_of, tool_output_of
from sleuth.dialects import Dialect
from sleuth.metrics.intervals import share
from sleuth.rewards.search_results import appears_in
from sleuth.runs.protocol import ProtocolCard
from sleuth.types import Action, Episode, Score

Row = dict[str, Any]
Answered = Sequence[tuple[Episode, Score]]

CITABLE = re.compile(r"[^\s,;|&<>\"'\[\](){}]+")
"""What can stand as an id in a list of them."""


def rows_of_searches(answered: Answered, dialect: Dialect) -> list[Row]:
    """A row for every search that found anything: why the agent searched, and what came back. Golden answers are those
    of the question that stand in it; whether it answers the question nobody knows. Episodes whose story a chat template
    told anew are left out."""
    return [row for episode, _ in answered for row in _turns(episode, dialect)]


def accepted_rows(answered: Answered, bar: float) -> list[Row]:
    """For each task the best of its answers that are accepted, as the row's own answer; none where none is."""
    best: dict[str, tuple[Episode, Score]] = {}
    for episode, score in answered:
        held = best.get(episode.task.id)
        if is_accepted(score, bar) and (held is None or (score.value or 0) > (held[1].value or 0)):
            best[episode.task.id] = episode, score
    return [_with_answer(episode) for episode, _ in best.values()]


def is_accepted(score: Score, bar: float) -> bool:
    """Well formed; its citations have an F1 of at least `bar`, or it rightly abstains; and right, as far as the data
    can tell."""
    cites = score.parts.get("citation_f1", 0.0) >= bar or score.parts.get("right_abstention") == 1
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
    bar: float | None,
) -> str:
    """README of a file of rows, in markdown; no figure in it was typed by a person. `bar` is that of accepted answers,
    None where searches were kept."""
    tasks = len({episode.task.id for episode, _ in answered})
    lines = [
        *(f"# {name}", ""),
        f"{len(rows)} rows to refine, made with Sleuth {__version__}: {_WHAT[bar is not None]} `{model}`, asked "
        f"{tasks} questions of `{questions}`.",
        *("", "| | |", "|---|---|"),
        *(f"| {key} | {value} |" for key, value in _facts(rows, answered, bar).items()),
        f"| questions, sha256 | `{questions_sha256}` |",
        f"| protocol | {protocol.dialect.name}, prompt {protocol.prompt}, `{protocol.hash}` |",
        *("", "The rows hold text of the corpus that was searched, under whatever licence that has."),
    ]
    return "\n".join(lines) + "\n"


_WHAT = {True: "the accepted answers of", False: "the reasoning and the results of every search of"}


def _facts(rows: Sequence[Row], answered: Answered, bar: float | None) -> Mapping[str, str]:
    snippets = [float(len(snippets_of(row["tool_output"]))) for row in rows]
    words = [float(len(row["tool_output"].split())) for row in rows]
    facts = {"episodes": str(len(answered))}
    if bar is not None:
        clusters = [episode.task.id for episode, _ in answered]
        taken = share([float(is_accepted(score, bar)) for _, score in answered], clusters)
        facts["accepted"] = (
            f"{taken.told(unmeasured='none')} of the episodes: well formed, citation F1 of {bar:g} or more, and right"
        )
    if rows:
        facts |= {"snippets a row": f"{fmean(snippets):.1f}", "words a tool output": f"{fmean(words):.0f}"}
        facts["rows with golden answers"] = str(sum(bool(row["golden_answers"]) for row in rows))
    return facts


def _turns(episode: Episode, dialect: Dialect) -> Iterator[Row]:
    if len(episode.trajectories) > 1:
        return
    task, story = episode.task, episode.trajectory
    turns = [segment.text for segment in story.segments if segment.author == "policy"]
    for number, (turn, action) in enumerate(zip(turns, story.actions, strict=False)):
        if action.kind == "search" and action.passages:
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
    """What was thought before the search; where nothing was, the query."""
    before = turn.partition(dialect.search.open)[0] if dialect.search.open in turn else ""
    thought = before.replace(dialect.think.open, " ").replace(dialect.think.close, " ").strip()
    return thought or f"I search for: {action.text}"


def results_as_output(action: Action) -> str:
    """The passages under their own ids, or under their ranks where one cannot be cited or stands twice."""
    ids = [passage.id for passage in action.passages]
    if len(set(ids)) < len(ids) or not all(map(CITABLE.fullmatch, ids)):
        ids = [str(rank) for rank in range(1, len(ids) + 1)]
    return tool_output_of([replace(p, id=id_) for id_, p in zip(ids, action.passages, strict=True)])


def _with_answer(episode: Episode) -> Row:
    written = "".join(segment.text for segment in episode.trajectory.segments if segment.author == "policy")
    return row_of(replace(episode.task, reference=written.strip()))
