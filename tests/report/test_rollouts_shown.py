from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import write_run

from sleuth.report.rollouts_shown import (
    MAX_ROLLOUT_BYTES,
    TextPool,
    opened_at,
    rollouts_shown,
    step_of,
)
from sleuth.runs.rollouts import write_rollouts
from sleuth.types import Episode, Group, Score, Segment, SleuthError, Task, Trajectory


def files_of(run: Path) -> list[Path]:
    return sorted((run / "rollouts").glob("*.parquet"))


def test_steps_are_spread_evenly_from_the_first_to_the_last(tmp_path: Path) -> None:
    files = files_of(write_run(tmp_path / "demo", rollout_steps=tuple(range(1, 41)), groups=1))
    steps = [step["step"] for step in rollouts_shown(files, TextPool())]
    assert len(steps) == 12
    assert (steps[0], steps[-1]) == (1, 40)
    assert {after - before for before, after in pairwise(steps)} <= {3, 4}


def test_a_step_shows_its_first_groups_and_says_how_many_there_were(tmp_path: Path) -> None:
    [step] = rollouts_shown(files_of(write_run(tmp_path / "demo", rollout_steps=(5,), groups=11)), TextPool())
    assert step["of"] == 11
    assert len(step["groups"]) == 8


def test_a_sibling_carries_score_parts_note_advantage_and_stop(tmp_path: Path) -> None:
    run = write_run(tmp_path / "demo", rollout_steps=(60,), groups=1)
    [step] = rollouts_shown(files_of(run), TextPool())
    first, *_, last = step["groups"][0]["siblings"]
    assert first["label"] == "1"
    assert first["advantage"] == -0.5
    assert first["parts"] == {"em": first["score"]}
    assert first["version"] == 3
    assert last["score"] is last["advantage"] is None
    assert (last["note"], last["stop"]) == ("retriever failed", "failed")


def test_long_rollouts_leave_every_step_a_group_and_the_page_small(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        groups = [long_group(f"{step}.{number} " + "x" * 250_000) for number in range(4)]
        write_rollouts(tmp_path / f"step-{step:06d}.parquet", groups, [[0.0]] * 4)
    pool = TextPool()
    steps = rollouts_shown(sorted(tmp_path.glob("*.parquet")), pool)
    assert [len(step["groups"]) for step in steps] == [2, 2, 1]
    assert pool.size < MAX_ROLLOUT_BYTES + 300_000


def long_group(text: str) -> Group:
    task = Task(id=text[:3], question="why?", golden_answers=("x",))
    trajectory = Trajectory(segments=(Segment(author="policy", tokens=(1,), text=text),))
    episode = Episode(task=task, sample=0, trajectories=(trajectory,))
    return Group(task=task, episodes=(episode,), scores=(Score(value=0.0),))


def test_a_file_without_a_step_in_its_name_is_named() -> None:
    assert step_of(Path("step-000100.parquet")) == 100
    with pytest.raises(SleuthError, match=r"last\.parquet: a rollout file is named after its step"):
        step_of(Path("last.parquet"))


def step_with(*groups: list[float | None]) -> dict[str, Any]:
    return {"groups": [{"siblings": [{"score": score} for score in scores]} for scores in groups]}


def test_the_page_opens_at_the_last_step_where_siblings_differ() -> None:
    same, mixed = [1.0, 1.0, None], [0.0, 1.0]
    assert opened_at([step_with(mixed), step_with(same, mixed, mixed), step_with(same)]) == (1, 1)
    assert opened_at([step_with(same), step_with(same)]) == (1, 0)
    assert opened_at([]) == (0, 0)
