from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import write_run
from tokenizers import Tokenizer

from sleuth.report.rollouts_shown import (
    MAX_ROLLOUT_BYTES,
    TextPool,
    opened_at,
    read_tokenizer,
    rollouts_shown,
    step_of,
    token_ends,
)
from sleuth.runs.rollouts import write_rollouts
from sleuth.types import Episode, Group, Score, Segment, SleuthError, Task, Trajectory


def files_of(run: Path) -> list[Path]:
    return sorted((run / "rollouts").glob("*.parquet"))


def test_steps_are_spread_evenly_from_the_first_to_the_last(tmp_path: Path) -> None:
    files = files_of(write_run(tmp_path / "demo", rollout_steps=tuple(range(1, 41)), groups=1))
    steps = [step["step"] for step in rollouts_shown(files, TextPool(), None)]
    assert len(steps) == 12
    assert (steps[0], steps[-1]) == (1, 40)
    assert {after - before for before, after in pairwise(steps)} <= {3, 4}


def test_a_step_shows_its_first_groups_and_says_how_many_there_were(tmp_path: Path) -> None:
    [step] = rollouts_shown(files_of(write_run(tmp_path / "demo", rollout_steps=(5,), groups=11)), TextPool(), None)
    assert step["of"] == 11
    assert len(step["groups"]) == 8


def test_a_sibling_carries_score_parts_note_advantage_and_stop(tmp_path: Path) -> None:
    run = write_run(tmp_path / "demo", rollout_steps=(60,), groups=1)
    [step] = rollouts_shown(files_of(run), TextPool(), None)
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
    steps = rollouts_shown(sorted(tmp_path.glob("*.parquet")), pool, None)
    assert [len(step["groups"]) for step in steps] == [2, 2, 1]
    assert pool.size < MAX_ROLLOUT_BYTES + 300_000


def long_group(text: str) -> Group:
    task = Task(id=text[:3], question="why?", golden_answers=("x",))
    trajectory = Trajectory(segments=(Segment(author="policy", tokens=(1,), text=text),))
    episode = Episode(task=task, sample=0, trajectories=(trajectory,))
    return Group(task=task, episodes=(episode,), scores=(Score(value=0.0),))


def test_policy_tokens_carry_their_log_probabilities(tmp_path: Path) -> None:
    run, pool = write_run(tmp_path / "demo", rollout_steps=(60,), groups=1), TextPool()
    [step] = rollouts_shown(files_of(run), pool, read_tokenizer(run))
    segments = step["groups"][0]["siblings"][0]["segments"]
    assert all(("ends" in segment) == (segment["author"] == "policy") for segment in segments)
    policy = next(segment for segment in segments if segment["author"] == "policy")
    assert len(policy["ends"]) == len(policy["logprobs"])
    assert policy["ends"][-1] == len(pool.texts[policy["text"]])


def test_a_character_of_several_tokens_ends_with_its_last(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(write_run(tmp_path / "demo"))
    assert token_ends(tokenizer.encode("aé!").ids, "aé!", tokenizer) == [1, 1, 2, 3]


def test_tokens_that_do_not_spell_the_text_are_not_shown_one_by_one(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(write_run(tmp_path / "demo"))
    assert token_ends(tokenizer.encode("other").ids, "text", tokenizer) is None


def tokenizer_of(run: Path) -> Tokenizer:
    tokenizer = read_tokenizer(run)
    assert tokenizer is not None
    return tokenizer


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    file = tmp_path / "step-000001.parquet"
    file.write_text("torn")
    with pytest.raises(SleuthError, match=r"step-000001\.parquet: is not a rollout file"):
        rollouts_shown([file], TextPool(), None)


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
