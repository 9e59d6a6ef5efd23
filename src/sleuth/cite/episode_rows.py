"""Refiner training rows from the episodes of an evaluation, with a data card: the search results of an agent, or the
accepted answers of a refiner."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from sleuth import __version__
from sleuth.answers.match import appears_in
from sleuth.cite.dialect import refines
from sleuth.cite.rows import row_of, snippets_of, tool_output_of
from sleuth.data.questions import questions_hash
from sleuth.dialect import Dialect
from sleuth.evaluation.eval_session import EvalSession
from sleuth.evaluation.intervals import share
from sleuth.host.atomic import write_text
from sleuth.types import Action, Episode, Score, SleuthError

Row = dict[str, Any]
Answered = Sequence[tuple[Episode, Score]]

CITABLE = re.compile(r"[^\s,;|&<>\"'\[\](){}]+")
"""An id that can be cited in a list of ids."""
LEAST_F1 = 0.8
"""Citation F1 of an accepted answer at least."""


def keep_rows(file: Path, answered: Answered, session: EvalSession, *, model: str, questions: str) -> str:
    """Writes the rows, with FILE.md beside them, and returns a line. A refiner's rows are those whose answers are
    accepted; a search agent's are the results of every search. Raises SleuthError if there are none."""
    dialect = session.setting.dialect
    if refined := refines(dialect):
        rows, why = accepted_rows(answered), f"no answer is well formed, right and cites with an F1 of {LEAST_F1:g}"
    else:
        rows, why = rows_of_searches(answered, dialect), "no search found anything"
    if not rows:
        raise SleuthError(f"--rows {file}: {why}, so there is nothing to write")
    made_of = "the accepted answers of" if refined else "the reasoning and the results of every search of"
    tasks = {episode.task.id: episode.task for episode, _ in answered}
    protocol = session.protocol()
    facts = {
        "episodes": f"{len(answered)}",
        **({"accepted": _accepted_share(answered)} if refined else {}),
        "snippets a row": f"{fmean(len(snippets_of(row['tool_output'])) for row in rows):.1f}",
        "words a tool output": f"{fmean(len(row['tool_output'].split()) for row in rows):.0f}",
        "rows with golden answers": f"{sum(bool(row['golden_answers']) for row in rows)}",
        **({"claims judged by": f"`{protocol.scorer}`"} if refined else {}),
        "questions, sha256": f"`{questions_hash(tasks.values())}`",
        "protocol": f"{protocol.dialect.name}, prompt {protocol.prompt}, `{protocol.hash}`",
    }
    card = [
        *(f"# {file.name}", ""),
        f"{len(rows)} rows to refine, made with Sleuth {__version__}: {made_of} `{model}`, asked {len(tasks)} "
        f"questions of `{questions}`.",
        *("", "| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in facts.items())),
        *("", "The rows hold text of the corpus that was searched, under whatever licence that has."),
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file.with_suffix(".md"), "\n".join(card) + "\n")
    write_text(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return f"{file}: {len(rows)} rows; {file.with_suffix('.md').name} describes where they come from"


def _accepted_share(answered: Answered) -> str:
    accepted = share([float(is_accepted(score)) for _, score in answered], [one.task.id for one, _ in answered])
    shown = accepted.formatted(unmeasured="none")
    return f"{shown} of the episodes: well formed, citation F1 of {LEAST_F1:g} or more, and right"


def rows_of_searches(answered: Answered, dialect: Dialect) -> list[Row]:
    """A row for every search with results: the agent's reasoning and the results. Golden answers are those of the
    question that appear in the results; whether the results answer it is unknown. Episodes whose history a chat
    template rewrote are left out."""
    episodes = (episode for episode, _ in answered if len(episode.trajectories) == 1)
    return [row for episode in episodes for row in _search_rows(episode, dialect)]


def accepted_rows(answered: Answered) -> list[Row]:
    """One row per task with its best accepted answer as the row's own; tasks without one are left out."""
    best: dict[str, tuple[Episode, float]] = {}
    for episode, score in answered:
        value = score.value or 0.0
        if is_accepted(score) and (episode.task.id not in best or value > best[episode.task.id][1]):
            best[episode.task.id] = episode, value
    return [_with_answer(episode) for episode, _ in best.values()]


def is_accepted(score: Score) -> bool:
    """Whether an answer is well formed, has a citation F1 of at least `LEAST_F1` or rightly abstains, and is right as
    far as the data says."""
    cites = score.parts.get("citation_f1", 0.0) >= LEAST_F1 or score.parts.get("right_abstention") == 1
    return score.value is not None and score.parts["well_formed"] == 1 and cites and score.parts.get("grounded", 1) == 1


def _search_rows(episode: Episode, dialect: Dialect) -> Iterator[Row]:
    task, trajectory = episode.task, episode.trajectory
    turns = [segment.text for segment in trajectory.segments if segment.author == "policy"]
    for number, (at, action) in enumerate(zip(trajectory.action_turns, trajectory.actions, strict=True)):
        if action.kind == "search" and action.passages:
            texts = "\n".join(f"{passage.title}\n{passage.text}" for passage in action.passages)
            yield {
                "id": f"{task.id}/{episode.sample}/{number}",
                "question": task.question,
                "reasoning": reasoning_before(turns[at], action.text, dialect),
                "tool_output": results_as_output(action),
                "golden_answers": [golden for golden in task.golden_answers if appears_in(golden, texts)],
                "type": task.kind,
                "data_source": task.source,
            }


def reasoning_before(turn: str, query: str, dialect: Dialect) -> str:
    """The thought before a search; the query if there is none."""
    before = turn.partition(dialect.search.open)[0] if dialect.search.open in turn else ""
    thought = before.replace(dialect.think.open, " ").replace(dialect.think.close, " ").strip()
    return thought or f"I search for: {query}"


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
