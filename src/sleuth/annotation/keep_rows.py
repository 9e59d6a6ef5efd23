"""What an examination played, kept as rows to refine with a card beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from sleuth.data.questions import questions_hash
from sleuth.dialects.refine import refines
from sleuth.evaluation.eval_session import EvalSession
from sleuth.metrics.refiner_rows import accepted_rows, data_card, rows_of_searches
from sleuth.runs.atomic import write_text
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
    """Write the rows, and FILE.md beside them; what to say about it. Of a refiner those whose answers pass the `bar`,
    of a search what every search found. Raises SleuthError where there is nothing to keep."""
    dialect = session.setting.dialect
    refined = refines(dialect)
    rows = accepted_rows(answered, bar) if refined else rows_of_searches(answered, dialect)
    if not rows:
        why = (
            f"no answer is well formed, right and cites with an F1 of {bar:g}"
            if refined
            else "no search found anything"
        )
        raise SleuthError(f"--rows {file}: {why}, so that there is nothing to keep")
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
    return f"{file}: {len(rows)} rows; {file.with_suffix('.md').name} tells where they come from"
