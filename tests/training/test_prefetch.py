"""Episodes that are played one step ahead: how old their weights are is known, bounded and told."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import closing
from dataclasses import replace

import pytest
from emulator.served import EmulatedServer
from run_files import groups, log, rows
from small_stages import engine, through
from verb import sleuth
from written_groups import make_group, written

from sleuth.recipe import load_recipe
from sleuth.training.rollout_worker import Background, lag_counts
from sleuth.types import Group, Segment, SleuthError, Trajectory


def versions(*each: int | None) -> Group:
    """An episode for each version: as many tokens as it is above 0."""
    asked = Segment(author="env", tokens=(1,) * 9, text="?")
    texts = [(asked, written(*(2,) * (version or 1), version=version)) for version in each]
    return make_group(*((Trajectory(segments=segments), None) for segments in texts))


def test_tokens_are_counted_by_how_far_their_weights_lag_also_within_a_turn():
    assert lag_counts([versions(4, 3), versions(4)], 4, max_policy_lag=1) == {0: 8, 1: 3}
    assert lag_counts([versions(4, 4)], 4, max_policy_lag=0) == {0: 8}
    assert lag_counts([versions(None)], 4, max_policy_lag=0) == {}
    turn = replace(written(*range(7), version=2), updates=((3, 3), (4, 5)))
    assert turn.version_counts == [(2, 3), (3, 1), (5, 3)]
    assert lag_counts([make_group((Trajectory(segments=(turn,)), None))], 5, max_policy_lag=3) == {3: 3, 2: 1, 0: 3}


@pytest.mark.parametrize(("oldest", "max_policy_lag"), [(3, 0), (2, 1)])
def test_older_weights_than_the_bound_end_the_run(oldest, max_policy_lag):
    with pytest.raises(SleuthError, match=f"the weights of version {oldest}, and the learner is at 4: more than"):
        lag_counts([versions(4, oldest)], 4, max_policy_lag=max_policy_lag)


def test_work_goes_on_beside_its_caller_and_what_it_raises_is_raised_where_it_is_asked_for():
    began, go_on = threading.Event(), threading.Event()

    async def work() -> int:
        began.set()
        while not go_on.is_set():
            await asyncio.sleep(0.001)
        return 7

    async def fail() -> int:
        raise SleuthError("the retriever is gone")

    with closing(Background()) as background:
        seven, failed = background.submit(work()), background.submit(fail())
        assert began.wait(10)
        go_on.set()
        assert seven.result() == 7
        with pytest.raises(SleuthError, match="the retriever is gone"):
            failed.result()


def test_work_that_is_cancelled_ends_at_once():
    began, ended = threading.Event(), threading.Event()

    async def work() -> None:
        try:
            began.set()
            await asyncio.sleep(60)
        finally:
            ended.set()

    started = time.monotonic()
    for _ in range(50):
        with closing(Background()) as background:
            background.submit(work())
    began.clear()
    ended.clear()
    background = Background()
    background.submit(work())
    assert began.wait(10)
    background.close()
    assert ended.is_set()
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("more", "loss", "problem"),
    [
        ({"max_policy_lag": -1}, "sampler", "greater than or equal to 0"),
        ({"max_policy_lag": 1, "sleeps": True}, "sampler", "servers that sleep while the learner"),
        ({"max_policy_lag": 2}, "learner", "engine.max_policy_lag = 2 trains on samples of older weights"),
    ],
)
def test_what_cannot_be_honest_is_refused(recipe_file, more, loss, problem):
    overrides = [engine(urls=["http://a"], **more), f"stage.1.loss.old_logprobs={loss}"]
    with pytest.raises(SleuthError, match=problem):
        load_recipe(recipe_file, overrides)


def test_a_temperature_that_changes_is_refused_where_episodes_are_played_ahead(recipe_file):
    lagging = [engine(urls=["http://a"], max_policy_lag=1), "stage.1.loss.old_logprobs=sampler"]
    with pytest.raises(SleuthError, match="plays a step at the temperature of an earlier one"):
        load_recipe(recipe_file, [*lagging, "stage.1.sampling.temperature={ 0 = 1.0, 9 = 0.5 }"])


@pytest.fixture
def server(servers) -> EmulatedServer:
    [server] = servers("sglang")
    return server


def test_a_run_one_step_ahead_tells_how_old_its_episodes_are_and_goes_on_where_it_stopped(
    run, recipe_file, tmp_path, server
):
    ahead = through([server], max_policy_lag=1)
    run(recipe_file, tmp_path / "run", ahead, "stage.1.stop_after=2")
    run(recipe_file, tmp_path / "run", ahead)
    steps = rows(tmp_path / "run")
    assert [row["off_policy_fraction"] for row in steps] == [0, 1, 0, 1]  # each session plays its first step itself
    asked = []
    for step, version in ((1, 0), (2, 0), (3, 2), (4, 2)):
        played = groups(tmp_path / "run", step)
        asked += [group.task.id for group in played]
        turns = [s for g in played for e in g.episodes for s in e.trajectory.segments if s.author == "policy"]
        assert {segment.policy_version for segment in turns} == {version}
    assert len(set(asked)) == 16  # no question was skipped or asked twice
    trained = [row for row in steps if row["loss"] is not None]
    assert max(row["sampler_learner_kl"] for row in trained if row["off_policy_fraction"]) > 1e-7
    assert "mismatch" not in log(tmp_path / "run")  # it is as it should be


def test_a_step_that_was_played_ahead_is_computed_again_to_the_last_bit(run, recipe_file, tmp_path, server):
    run(recipe_file, tmp_path / "run", through([server], max_policy_lag=1))
    recorded = {row["step"]: row["loss"] for row in rows(tmp_path / "run")}
    assert sum(loss is not None for loss in recorded.values()) > 1
    for step, loss in recorded.items():
        found = json.loads(sleuth("replay", tmp_path / "run", step, "--json").stdout)
        assert found["loss"] == found["recorded_loss"] == loss


@pytest.mark.long
def test_a_run_whose_episodes_go_on_across_updates_loses_and_repeats_nothing_and_can_be_computed_again(
    run, recipe_file, tmp_path, server
):
    server.fault(token_seconds=0.01, tail=1.0)
    ahead = through([server], max_policy_lag=2)
    run(recipe_file, tmp_path / "run", ahead, "stage.1.stop_after=2")
    run(recipe_file, tmp_path / "run", ahead)
    steps = rows(tmp_path / "run")
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert sum(row["turns_resumed"] for row in steps) > 0
    assert sum(row["turns_redrawn"] for row in steps) == 0
    played = [group for step in range(1, 5) for group in groups(tmp_path / "run", step)]
    assert len({group.task.id for group in played}) == 16  # no question was skipped or asked twice
    for step, row in enumerate(steps, start=1):
        lags = lag_counts(groups(tmp_path / "run", step), step - 1, max_policy_lag=2)
        assert row["off_policy_fraction"] == pytest.approx(1 - lags[0] / lags.total())
        assert row["policy_lag_mean"] == pytest.approx((lags[1] + 2 * lags[2]) / lags.total())
    assert max(row["policy_lag_mean"] for row in steps) > 0
    assert "mismatch" not in log(tmp_path / "run")
    segments = [s for group in played for e in group.episodes for s in e.trajectory.segments]
    assert any(segment.updates for segment in segments)
    for row in steps:
        found = json.loads(sleuth("replay", tmp_path / "run", row["step"], "--json").stdout)
        assert found["loss"] == found["recorded_loss"] == row["loss"]


def test_a_loss_that_cannot_correct_for_older_weights_is_refused_before_the_run(run, recipe_file, tmp_path, server):
    own = tmp_path / "own_loss.py"
    own.write_text(
        "def plain(logprobs, old_logprobs, advantages, weights):\n    return -(logprobs * advantages * weights).sum()\n"
    )
    overrides = [through([server], max_policy_lag=2), f"stage.1.loss.function={own}:plain"]
    with pytest.raises(
        SleuthError, match=r"plain.* has the same gradient whatever old_logprobs are, so that it cannot"
    ):
        run(recipe_file, tmp_path / "run", *overrides)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
