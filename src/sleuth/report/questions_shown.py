"""The same question before and after training, for every question that fits into the page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sleuth.report.paired import Evaluation, Record, paired_records
from sleuth.report.rollouts_shown import evenly
from sleuth.report.transcripts import TextPool, action_view, segment_view

MOST_QUESTIONS = 600
MOST_BYTES = 2_500_000  # before repeated texts are stored once


def questions_shown(evaluations: Mapping[str, Evaluation], pool: TextPool) -> dict[str, Any]:
    """`{"of", "pairs"}`: the questions that both evaluations asked, evenly thinned where they are too many."""
    pairs = paired_records(evaluations)
    size = len(json.dumps(pairs))
    fitting = len(pairs) * MOST_BYTES // size
    shown = evenly(pairs, min(MOST_QUESTIONS, max(2, fitting)))
    return {"of": len(pairs), "pairs": [_pair_view(*pair, pool) for pair in shown]}


def _pair_view(base: Record, trained: Record, pool: TextPool) -> dict[str, Any]:
    return {
        "id": base["id"],
        "question": base["question"],
        "kind": base.get("kind", ""),
        "answers": base["golden_answers"],
        "base": _side_view(base, pool),
        "trained": _side_view(trained, pool),
    }


def _side_view(record: Record, pool: TextPool) -> dict[str, Any]:
    gold = record.get("gold_passages", ())
    return {
        "em": record.get("em"),
        "note": record.get("note", ""),
        "answer": record.get("answer"),
        "searches": record.get("searches"),
        "stop": record.get("stop", ""),
        "segments": [segment_view(segment, pool, None) for segment in record.get("segments", ())],
        "actions": [action_view(action, gold, pool) for action in record.get("actions", ())],
    }
