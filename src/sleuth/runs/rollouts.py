"""Groups of scored episodes in parquet: one row a trajectory.

Log-probabilities are stored as float32, the precision of engines, so they are read back exactly. Every other number is
read back exactly too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from sleuth.host.atomic import replacing_file
from sleuth.runs.chain import recorded
from sleuth.types import (
    NO_INFO,
    Action,
    Continuation,
    Credit,
    Episode,
    Evidence,
    Group,
    Info,
    Passage,
    Rubric,
    Score,
    Segment,
    SleuthError,
    StatedClaim,
    Task,
    Trajectory,
)

_PASSAGE = pa.struct([("id", pa.string()), ("title", pa.string()), ("text", pa.string()), ("score", pa.float64())])
_ACTION = pa.struct(
    [
        ("kind", pa.string()),
        ("text", pa.string()),
        ("passages", pa.list_(_PASSAGE)),
        ("failure", pa.string()),  # null: none, or an older file
        ("result", pa.string()),  # null: no call, or an older file
        ("same_turn", pa.bool_()),  # null: as false, or an older file
    ]
)
_SEGMENT = pa.struct(
    [
        ("author", pa.string()),
        ("text", pa.string()),
        ("tokens", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),  # null: not sampled by the policy, or not returned by the engine
        ("policy_version", pa.int32()),
        ("cut", pa.int32()),
    ]
)
_UPDATED = pa.struct([*_SEGMENT, ("updates", pa.list_(pa.list_(pa.int32())))])
"""A segment that several versions may have sampled."""
_STATED = pa.struct([("claim", pa.string()), ("snippets", pa.list_(pa.string())), ("asked", pa.bool_())])
_EVIDENCE = pa.struct(
    [
        ("reasoning", pa.string()),
        ("output", pa.string()),
        ("snippets", pa.list_(_PASSAGE)),
        ("answerable", pa.bool_()),  # null: unknown
        ("stated", pa.list_(_STATED)),  # null: an older file
    ]
)
_CONTINUATION = pa.struct([("document", pa.string()), ("prefix", _SEGMENT), ("suffix", _SEGMENT)])
_RUBRIC = pa.struct([("title", pa.string()), ("description", pa.string()), ("wanted", pa.bool_())])
_CREDIT = pa.struct(
    [
        ("segment", pa.int32()),
        ("value", pa.float64()),
        ("begin", pa.int32()),
        ("end", pa.int32()),
    ]  # null end: to the last token
)
_OWN_SCORE = pa.struct([("value", pa.float64()), ("note", pa.string())])  # null value: missing
MAGIC = b"PAR1"
SCHEMA = pa.schema(
    [
        ("group", pa.int32()),  # counts the groups of the file: a step may ask one question twice
        ("task_id", pa.string()),
        ("question", pa.string()),
        ("golden_answers", pa.list_(pa.string())),
        ("gold_passages", pa.list_(pa.string())),
        ("kind", pa.string()),
        ("source", pa.string()),
        ("prompt", pa.string()),  # null: the environment's prompt, or an older file
        ("evidence", _EVIDENCE),  # null: the task has none, or the file is from before there was any; so the next two
        ("reference", pa.string()),
        ("rubrics", pa.list_(_RUBRIC)),
        ("continuation", _CONTINUATION),  # null: as of the evidence
        ("info", pa.string()),  # JSON; null: none, or an older file
        ("sample", pa.int32()),
        ("trajectory", pa.int32()),
        ("stop", pa.string()),
        ("score", pa.float64()),  # null: missing
        ("parts", pa.map_(pa.string(), pa.float64())),  # null: the group was never scored
        ("note", pa.string()),
        ("notes", pa.map_(pa.string(), pa.string())),  # null: an older file
        ("credits", pa.list_(_CREDIT)),
        ("advantage", pa.float64()),  # null: missing, or the group was not trained
        ("segments", pa.list_(_UPDATED)),  # without `updates` in a file where they are all empty, or an older one
        ("actions", pa.list_(_ACTION)),
        ("own_score", _OWN_SCORE),  # null: the environment gives none; absent where none does, or of an older file
    ]
)


def write_rollouts(path: Path, groups: Sequence[Group], advantages: Sequence[Sequence[float | None]]) -> None:
    """Write a step's groups with `advantages[p][g]` of each episode; whole or not at all."""
    rows = [
        row
        for index, (group, group_advantages) in enumerate(zip(groups, advantages, strict=True))
        for row in _rows_of_group(index, group, group_advantages)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = SCHEMA  # without what no episode of the file has
    if not any(segment["updates"] for row in rows for segment in row["segments"]):
        schema = schema.set(SCHEMA.names.index("segments"), pa.field("segments", pa.list_(_SEGMENT)))
    if all(row["own_score"] is None for row in rows):
        schema = schema.remove(SCHEMA.names.index("own_score"))
    with recorded(path), replacing_file(path) as partial:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), partial, compression="zstd", write_page_checksum=True)


def read_rollouts(path: Path) -> list[Group]:
    """The groups of a file, equal to those that were written."""
    return [_group(list(rows)) for _, rows in groupby(_rows(path), key=lambda row: row["group"])]


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """In this context errors of reading a rollout file are SleuthErrors that name it. Read with
    `page_checksum_verification`, or changed bytes are not noticed."""
    try:
        yield
    except FileNotFoundError:
        raise SleuthError(f"{path}: no such rollout file") from None
    except pa.ArrowException as error:
        raise SleuthError(f"{path}: is not a rollout file: {str(error).splitlines()[0]}") from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise SleuthError(f"{path}: is damaged: {str(error).splitlines()[0]}") from None


def is_whole(path: Path) -> bool:
    """Whether a file begins and ends as parquet does; one that was cut does not."""
    with open(path, "rb") as file:
        first = file.read(len(MAGIC))
        file.seek(-min(len(MAGIC), path.stat().st_size), os.SEEK_END)
        return first == MAGIC == file.read()


def read_advantages(path: Path) -> list[list[float | None]]:
    """The advantage of each episode of each group, as they were written."""
    firsts = (row for row in _rows(path) if row["trajectory"] == 0)
    return [[row["advantage"] for row in rows] for _, rows in groupby(firsts, key=lambda row: row["group"])]


def _rows_of_group(index: int, group: Group, advantages: Sequence[float | None]) -> Iterator[dict[str, Any]]:
    scores: Sequence[Score | None] = group.scores or [None] * len(group.episodes)
    for episode, score, advantage in zip(group.episodes, scores, advantages, strict=True):
        for number, trajectory in enumerate(episode.trajectories):
            yield {
                "group": index,
                **_task_row(group.task),
                "sample": episode.sample,
                "trajectory": number,
                "stop": trajectory.stop,
                **_score_row(score),
                "advantage": advantage,
                "segments": [_row(segment, _UPDATED) for segment in trajectory.segments],
                "actions": [_action_row(action) for action in trajectory.actions],
                "own_score": trajectory.score and _row(trajectory.score, _OWN_SCORE),
            }


def _task_row(task: Task) -> dict[str, Any]:
    plain = ("question", "golden_answers", "gold_passages", "kind", "source", "prompt", "reference")
    return {
        "task_id": task.id,
        **{name: getattr(task, name) for name in plain},
        "evidence": task.evidence and asdict(task.evidence),
        "rubrics": [asdict(rubric) for rubric in task.rubrics],
        "continuation": task.continuation and asdict(task.continuation),
        "info": cast("Info", task.info).text if task.info else None,
    }


def _score_row(score: Score | None) -> dict[str, Any]:
    if score is None:
        return {}
    return {
        "score": score.value,
        "parts": list(score.parts.items()),
        "note": score.note,
        "notes": list(score.notes.items()),
        "credits": [asdict(credit) for credit in score.credits],
    }


def _action_row(action: Action) -> dict[str, Any]:
    passages = [_row(passage, _PASSAGE) for passage in action.passages]
    absent = {"failure": action.failure or None, "same_turn": action.same_turn or None}
    return _row(action, _ACTION) | {"passages": passages} | absent


def _row(record: object, columns: pa.StructType) -> dict[str, Any]:
    """The fields of a record, which has those of the columns: `asdict` would also copy every token."""
    return {column.name: getattr(record, column.name) for column in columns}


def _rows(path: Path) -> list[dict[str, Any]]:
    with reading(path):
        return pq.read_table(path, schema=SCHEMA, page_checksum_verification=True).to_pylist()


def _group(rows: list[dict[str, Any]]) -> Group:
    task = _task(rows[0])
    episodes, scores = [], []
    for sample, sample_rows in groupby(rows, key=lambda row: row["sample"]):
        trajectories = list(sample_rows)
        episodes.append(Episode(task=task, sample=sample, trajectories=tuple(map(_trajectory, trajectories))))
        if trajectories[0]["parts"] is not None:
            scores.append(_score(trajectories[0]))
    return Group(task=task, episodes=tuple(episodes), scores=tuple(scores))


def _task(row: Mapping[str, Any]) -> Task:
    continuation = row["continuation"]
    if continuation is not None:
        parts = {part: _segment(continuation[part]) for part in ("prefix", "suffix")}
        continuation = Continuation(document=continuation["document"], **parts)
    return Task(
        id=row["task_id"],
        question=row["question"],
        golden_answers=tuple(row["golden_answers"]),
        gold_passages=tuple(row["gold_passages"]),
        kind=row["kind"],
        source=row["source"],
        prompt=row["prompt"] or "",
        evidence=_evidence(row["evidence"]),
        reference=row["reference"] or "",
        rubrics=tuple(Rubric(**rubric) for rubric in row["rubrics"] or ()),
        continuation=continuation,
        info=Info(json.loads(row["info"])) if row["info"] else NO_INFO,
    )


def _evidence(row: Mapping[str, Any] | None) -> Evidence | None:
    if row is None:
        return None
    snippets = tuple(Passage(**snippet) for snippet in row["snippets"])
    stated = tuple(StatedClaim(**entry | {"snippets": tuple(entry["snippets"])}) for entry in row["stated"] or ())
    return Evidence(**{**row, "snippets": snippets, "stated": stated})


def _score(row: Mapping[str, Any]) -> Score:
    credits = tuple(Credit(**credit) for credit in row["credits"] or ())
    notes = dict(row["notes"] or ())
    return Score(value=row["score"], parts=dict(row["parts"]), note=row["note"], credits=credits, notes=notes)


def _trajectory(row: Mapping[str, Any]) -> Trajectory:
    return Trajectory(
        segments=tuple(map(_segment, row["segments"])),
        actions=tuple(map(_action, row["actions"])),
        stop=row["stop"],
        score=Score(**given) if (given := row.get("own_score")) else None,
    )


def _segment(row: Mapping[str, Any]) -> Segment:
    logprobs = None if row["logprobs"] is None else tuple(row["logprobs"])
    updates = tuple(map(tuple, row.get("updates") or ()))
    return Segment(**{**row, "tokens": tuple(row["tokens"]), "logprobs": logprobs, "updates": updates})


def _action(row: Mapping[str, Any]) -> Action:
    passages = tuple(Passage(**passage) for passage in row["passages"])
    said = {"failure": row["failure"] or "", "result": row["result"], "same_turn": bool(row["same_turn"])}
    return Action(kind=row["kind"], text=row["text"], passages=passages, **said)
