"""Stores the episodes of an evaluation as refiner rows, with a data card beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from sleuth.cite.dialect import refines
from sleuth.cite.episode_rows import accepted_rows, data_card, rows_of_searches
from sleuth.data.questions import questions_hash
from sleuth.evaluation.eval_session import EvalSession
from sleuth.host.atomic import write_text
from sleuth.types import Episode, Score, SleuthError


def keep_rows(
    file: Path,
    answered: Sequence[tuple[Episode, Score]],
    session: EvalSession,
    *,
    model: str,
    questions: str,
    bar: float,
) -> str:
    """Writes the rows, with FILE.md beside them, and returns a line. A refiner's rows are those whose answers pass
    the `bar`; a search agent's are the results of every search. Raises SleuthError if there are none."""
    dialect = session.setting.dialect
    refined = refines(dialect)
    rows = accepted_rows(answered, bar) if refined else rows_of_searches(answered, dialect)
    if not rows:
        why = (
            f"no answer is well formed, right and cites with an F1 of {bar:g}"
            if refined
            else "no search found anything"
        )
        raise SleuthError(f"--rows {file}: {why}, so there is nothing to write")
    tasks = {episode.task.id: episode.task for episode, _ in answered}
    card = data_card(
        file.name,
        rows,
        answered,
        model=model,
        questions=questions,
        questions_sha256=questions_hash(tasks.values()),
        protocol=session.protocol(),
        min_f1=bar if refined else None,
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file.with_suffix(".md"), card)
    write_text(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return f"{file}: {len(rows)} rows; {file.with_suffix('.md').name} describes where they come from"
