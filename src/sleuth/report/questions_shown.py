"""The same question answered by several, beside each other, for every question that fits into the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sleuth.metrics.failures import MODES, failure_mode
from sleuth.metrics.paired import Record
from sleuth.report.rollouts_shown import evenly
from sleuth.report.transcripts import TextPool, action_view, segment_view

MOST_QUESTIONS = 600
MOST_BYTES = 2_500_000  # before repeated texts are stored once


def questions_shown(names: Sequence[str], answered: Sequence[Sequence[Record]], pool: TextPool) -> dict[str, Any]:
    """`{"names", "modes", "of", "rows"}`: questions with the answer of each side (`answered[question][side]`), evenly
    thinned where they are too many."""
    size = len(json.dumps(answered))
    fitting = len(answered) * MOST_BYTES // size
    shown = evenly(answered, min(MOST_QUESTIONS, max(2, fitting)))
    rows = [_row_view(sides, pool) for sides in shown]
    return {"names": list(names), "modes": MODES, "of": len(answered), "rows": rows}


def _row_view(sides: Sequence[Record], pool: TextPool) -> dict[str, Any]:
    first = sides[0]
    return {
        "id": first["id"],
        "question": first["question"],
        "kind": first.get("kind", ""),
        "answers": first["golden_answers"],
        "sides": [_side_view(record, pool) for record in sides],
    }


def _side_view(record: Record, pool: TextPool) -> dict[str, Any]:
    gold = record.get("gold_passages", ())
    return {
        "em": record.get("em"),
        "mode": failure_mode(record),
        "note": record.get("note", ""),
        "answer": record.get("answer"),
        "searches": record.get("searches"),
        "stop": record.get("stop", ""),
        "segments": [segment_view(segment, pool, None) for segment in record.get("segments", ())],
        "actions": [action_view(action, gold, pool) for action in record.get("actions", ())],
    }
