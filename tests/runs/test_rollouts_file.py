from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.report.rollouts_shown import TextPool, rollouts_shown
from sleuth.runs.rollouts import SCHEMA, read_advantages, read_rollouts, write_rollouts
from sleuth.types import (
    Action,
    Credit,
    Episode,
    Evidence,
    Group,
    Passage,
    Rubric,
    Score,
    Segment,
    SleuthError,
    StatedClaim,
    Task,
    Trajectory,
)

TASK = Task(id="q7", question="where?", golden_answers=("Tarn", "Tarn City"), gold_passages=("17",), kind="one_hop")
PASSAGE = Passage(id="17", title="Ada Voss", text="Ada Voss was born in Tarn. <b>\u2028", score=11.3)
PLAYED = Trajectory(
    segments=(
        Segment(author="template", tokens=(1, 2), text="Q: where?"),
        Segment(author="policy", tokens=(5, 9), text="<search>", logprobs=(-0.5, -1.25), policy_version=3),
        Segment(author="env", tokens=(), text="", cut=12),
    ),
    actions=(Action(kind="search", text="Ada", passages=(PASSAGE,)), Action(kind="answer", text="Tarn")),
    score=Score(value=0.5),
)
FAILED = Trajectory(segments=(), stop="turns", score=Score(value=None, note="my_env.py:3: Ledger.score: no"))


def group(*scores: Score, task: Task = TASK) -> Group:
    trajectories = [(PLAYED,), (FAILED, PLAYED)]
    episodes = tuple(Episode(task=task, sample=i, trajectories=t) for i, t in enumerate(trajectories))
    return Group(task=task, episodes=episodes, scores=scores)


SCORED = group(
    Score(
        value=1.0,
        parts={"em": 1.0, "format": 0.5},
        note="correct",
        credits=(Credit(segment=1, value=0.25), Credit(segment=1, value=-1.0, begin=2, end=5)),
    ),
    Score(value=None, note="retriever failed"),
)


def test_groups_come_back_equal_with_missing_scores_and_linked_trajectories(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "rollouts/step-000001.parquet", [SCORED, SCORED], [[1.5, None], [-0.5, None]])
    assert read_rollouts(tmp_path / "rollouts/step-000001.parquet") == [SCORED, SCORED]
    assert read_advantages(tmp_path / "rollouts/step-000001.parquet") == [[1.5, None], [-0.5, None]]


def test_a_group_that_was_never_scored_is_not_one_whose_scores_are_missing(tmp_path: Path) -> None:
    missing = group(Score(value=None), Score(value=None))
    write_rollouts(tmp_path / "r.parquet", [group(), missing], [[None, None], [None, None]])
    assert read_rollouts(tmp_path / "r.parquet") == [group(), missing]


def test_what_a_refiner_is_given_comes_back(tmp_path: Path) -> None:
    stated = (StatedClaim(claim="Ada Voss was born in Tarn.", snippets=("17", "18"), asked=True),)
    evidence = Evidence(reasoning="why", output="<snippet id=17>...", snippets=(PASSAGE,), stated=stated)
    rubrics = (Rubric(title="Town", description="Names Tarn."), Rubric(title="Pads", description="Pads.", wanted=False))
    refined = group(task=replace(TASK, evidence=evidence, reference="<answer>Tarn</answer>", rubrics=rubrics))
    write_rollouts(tmp_path / "r.parquet", [refined, group()], [[None, None]] * 2)
    assert read_rollouts(tmp_path / "r.parquet") == [refined, group()]


def test_a_prompt_of_the_data_comes_back_and_a_file_from_before_there_were_any_is_read(tmp_path: Path) -> None:
    own = group(task=replace(TASK, prompt="Think. Where?"))
    write_rollouts(tmp_path / "r.parquet", [own, group()], [[None, None]] * 2)
    assert read_rollouts(tmp_path / "r.parquet") == [own, group()]
    pq.write_table(pq.read_table(tmp_path / "r.parquet").drop_columns("prompt"), tmp_path / "before.parquet")
    assert read_rollouts(tmp_path / "before.parquet") == [group(), group()]


def test_the_file_has_one_row_a_trajectory_in_the_fixed_schema(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "r.parquet", [SCORED], [[1.0, None]])
    table = pq.read_table(tmp_path / "r.parquet")
    assert table.schema.names == SCHEMA.names
    segment = table.schema.field("segments").type.value_type
    assert [part.name for part in segment] == ["author", "text", "tokens", "logprobs", "policy_version", "cut"]
    assert table["sample"].to_pylist() == [0, 1, 1]
    assert table["trajectory"].to_pylist() == [0, 0, 1]


def test_the_versions_within_a_turn_come_back(tmp_path: Path) -> None:
    turn = replace(PLAYED.segments[1], tokens=(5, 9, 7), logprobs=(-0.5, -1.25, -2.0), updates=((1, 4), (2, 6)))
    crossed = replace(PLAYED, segments=(PLAYED.segments[0], turn))
    both = [group(), replace(group(), episodes=(replace(group().episodes[0], trajectories=(crossed,)),), scores=())]
    write_rollouts(tmp_path / "r.parquet", both, [[None, None], [None]])
    assert read_rollouts(tmp_path / "r.parquet") == both


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(max_value=0, width=32, allow_nan=False), max_size=5))
def test_log_probabilities_of_an_engine_come_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, logprobs: list[float]
) -> None:
    path = tmp_path_factory.getbasetemp() / "logprobs.parquet"
    segment = Segment(author="policy", tokens=(0,) * len(logprobs), text="", logprobs=tuple(logprobs))
    episode = Episode(task=TASK, sample=0, trajectories=(Trajectory(segments=(segment,)),))
    write_rollouts(path, [Group(task=TASK, episodes=(episode,))], [[None]])
    read = read_rollouts(path)[0].episodes[0].trajectory.segments[0].logprobs
    assert read is not None
    assert [struct.pack("d", value) for value in read] == [struct.pack("d", value) for value in logprobs]


def test_advantages_that_do_not_fit_the_episodes_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="zip"):
        write_rollouts(tmp_path / "r.parquet", [SCORED], [[1.0]])
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_missing_or_something_else_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SleuthError, match="no such rollout file"):
        read_rollouts(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("hello", encoding="utf-8")
    with pytest.raises(SleuthError, match=r"text\.parquet: is not a rollout file: [^\n]*$"):
        read_rollouts(tmp_path / "text.parquet")


def test_notes_of_the_user_are_read_back_and_files_of_before_have_none(tmp_path: Path) -> None:
    group = _group_of(Action(kind="search", text="Ada"))
    score = Score(value=0.5, parts={"score_f": 0.5, "score_f/two words": 2.0}, note="wrong", notes={"f": "long"})
    write_rollouts(tmp_path / "new.parquet", [replace(group, scores=(score,))], [[None]])
    assert read_rollouts(tmp_path / "new.parquet")[0].scores == (score,)
    pq.write_table(pq.read_table(tmp_path / "new.parquet").drop_columns("notes"), tmp_path / "step-1.parquet")
    assert read_rollouts(tmp_path / "step-1.parquet")[0].scores == (replace(score, notes={}),)
    shown = rollouts_shown([tmp_path / "step-1.parquet"], TextPool())[0]["groups"]
    assert shown[0]["siblings"][0]["note"] == "wrong"


def _group_of(action: Action) -> Group:
    task = Task(id="1", question="Where?", golden_answers=("Tarn",))
    segment = Segment(author="policy", tokens=(1,), text="<search>", logprobs=(-0.5,), policy_version=0)
    trajectory = Trajectory(segments=(segment,), actions=(action,), stop="failed")
    return Group(task=task, episodes=(Episode(task=task, sample=0, trajectories=(trajectory,)),))
