"""An even sample of a run's rollouts and answered questions, small enough for one page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, takewhile, zip_longest
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from sleuth.answers.failures import MODES, failure_mode
from sleuth.evaluation.figures import figure, is_score
from sleuth.evaluation.paired import Record
from sleuth.runs.rollouts import SCHEMA, reading
from sleuth.types import SleuthError

MAX_STEPS = 12
MAX_GROUPS = 8
MAX_ROLLOUT_BYTES = 1_200_000
BUFFER_BYTES = 2**20
BATCH_ROWS = 16
COLUMNS = [name for name in SCHEMA.names if name not in ("source", "credits")]

T = TypeVar("T")


def rollouts_shown(files: Sequence[Path], pool: TextPool) -> list[dict[str, Any]]:
    """Steps spread evenly over the run, each `{"step", "of", "groups"}` with the first of its `of` groups.

    Every step gets its first group before any gets its second, up to MAX_GROUPS and MAX_ROLLOUT_BYTES.
    """
    steps = [{"step": step_of(file), "of": 0, "groups": []} for file in evenly(files, MAX_STEPS)]
    waiting = []
    for step, file in zip(steps, evenly(files, MAX_STEPS), strict=True):
        step["of"], groups = _read_groups(file)
        waiting.append([(step, rows) for rows in groups])
    used, texts_before = 0, pool.size
    for turn in zip_longest(*waiting):
        for step, rows in filter(None, turn):
            if used + pool.size - texts_before > MAX_ROLLOUT_BYTES:
                break
            group = _group_view(rows, pool)
            step["groups"].append(group)
            used += len(json.dumps(group))
    return [step for step in steps if step["groups"]]


def opened_at(steps: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """The (step, group) that the page opens with, as indices: the last step with a group whose scores differ, and the
    first such group in it; the first group of the last step where no scores differ."""
    for at in reversed(range(len(steps))):
        for index, group in enumerate(steps[at]["groups"]):
            if len({sibling["score"] for sibling in group["siblings"]} - {None}) > 1:
                return at, index
    return max(0, len(steps) - 1), 0


def evenly(items: Sequence[T], most: int) -> list[T]:
    """At most `most` items, spread evenly, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


def step_of(file: Path) -> int:
    """`step-000100.parquet` is step 100."""
    digits = re.findall(r"\d+", file.stem)
    if not digits:
        raise SleuthError(f"{file}: a rollout file is named after its step, for example step-000100.parquet")
    return int(digits[-1])


def questions_played(files: Sequence[Path]) -> set[str]:
    """Every question in the stored rollouts."""
    return {question for file in files for question in _read_table(file, ["question"])["question"].to_pylist()}


def _read_groups(file: Path) -> tuple[int, list[list[dict[str, Any]]]]:
    """The number of groups in a file, and the rows of the first few."""
    of = len(_read_table(file, ["group"])["group"].unique())
    return of, _grouped(takewhile(lambda row: row["group"] < MAX_GROUPS, _rows_of(file)))


def _grouped(rows: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    return [list(group) for _, group in groupby(rows, key=lambda row: row["group"])]


def _rows_of(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file in order, of which only those that are taken, and a few more, are read from the disk."""
    settings = {"pre_buffer": False, "buffer_size": BUFFER_BYTES, "page_checksum_verification": True}
    with reading(file), pq.ParquetFile(file, **settings) as parquet:
        columns = [name for name in COLUMNS if name in parquet.schema_arrow.names]  # an older file lacks some
        for batch in parquet.iter_batches(batch_size=BATCH_ROWS, columns=columns, use_threads=False):
            yield from (dict.fromkeys(COLUMNS) | row for row in batch.to_pylist())


def _read_table(file: Path, columns: Sequence[str]) -> pa.Table:
    with reading(file):
        return pq.read_table(file, columns=list(columns), schema=SCHEMA, page_checksum_verification=True)


def _group_view(rows: Sequence[Mapping[str, Any]], pool: TextPool) -> dict[str, Any]:
    first = rows[0]
    return {
        "id": first["task_id"],
        "question": first["question"],
        "kind": first["kind"],
        "answers": first["golden_answers"],
        "siblings": [_sibling_view(row, pool) for row in rows],
    }


def _sibling_view(row: Mapping[str, Any], pool: TextPool) -> dict[str, Any]:
    return {
        "label": str(row["sample"] + 1) + (f".{row['trajectory'] + 1}" if row["trajectory"] else ""),
        "score": row["score"],
        "parts": dict(row["parts"] or ()),
        "note": _noted(row["note"], dict(row["notes"] or ())),
        "advantage": row["advantage"],
        "stop": row["stop"],
        "version": max((s["policy_version"] for s in row["segments"] if s["policy_version"] is not None), default=None),
        "segments": [segment_view(segment, pool) for segment in row["segments"]],
        "actions": [action_view(action, row["gold_passages"] or (), pool) for action in row["actions"] or ()],
    }


def _noted(note: str | None, notes: Mapping[str, str]) -> str:
    """Our note and those of the user's functions: `correct; brevity: short enough`."""
    others = [f"{name}: {text}" for name, text in notes.items() if text != note]
    return "; ".join([note, *others] if note else others)


MAX_QUESTIONS = 600
MAX_QUESTION_BYTES = 2_500_000  # before repeated texts are stored once


def questions_shown(names: Sequence[str], answered: Sequence[Sequence[Record]], pool: TextPool) -> dict[str, Any]:
    """`{"names", "modes", "of", "rows"}`: questions with the answer of each side (`answered[question][side]`), an even
    sample if they are too many."""
    size = len(json.dumps(answered))
    fitting = len(answered) * MAX_QUESTION_BYTES // size
    shown = evenly(answered, min(MAX_QUESTIONS, max(2, fitting)))
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
        "score": record.get("score", record.get("em")),
        "scores": {figure(key).label: value for key, value in record.items() if is_score(key)},
        "mode": failure_mode(record),
        "note": _noted(record.get("note"), record.get("notes", {})),
        "answer": record.get("answer"),
        "searches": record.get("searches"),
        "stop": record.get("stop", ""),
        "segments": [segment_view(segment, pool) for segment in record.get("segments", ())],
        "actions": [action_view(action, gold, pool) for action in record.get("actions", ())],
    }


# -- trajectories ------------------------------------------------------------------------------------------------------


class TextPool:
    """Texts by index. Siblings share prompts and passages, so each text is stored once; `size` is their bytes."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.size = 0
        self._indices: dict[str, int] = {}

    def index(self, text: str) -> int:
        """The index of `text`, which is added if it is new."""
        if text not in self._indices:
            self._indices[text] = len(self.texts)
            self.texts.append(text)
            self.size += len(text.encode("utf-8", "replace"))
        return self._indices[text]


def segment_view(segment: Mapping[str, Any], pool: TextPool) -> dict[str, Any]:
    """`{"author", "text": index}`, and `cut` if a part of it was left out."""
    view: dict[str, Any] = {"author": segment["author"], "text": pool.index(segment["text"])}
    if segment.get("cut"):
        view["cut"] = segment["cut"]
    return view


def action_view(action: Mapping[str, Any], gold: Sequence[str], pool: TextPool) -> dict[str, Any]:
    """An action with its passages in order; `gold` marks those that hold the answer."""
    passages = [
        {
            "id": passage["id"],
            "title": passage["title"],
            "text": pool.index(passage["text"]),
            "gold": passage["id"] in gold,
        }
        for passage in action.get("passages") or ()
    ]
    return {"kind": action["kind"], "text": action["text"], "passages": passages}
