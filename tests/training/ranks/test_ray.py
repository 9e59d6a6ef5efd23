"""Ranks that Ray starts are those of torchrun; what is wrong is told before Ray starts, or once."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from queue import SimpleQueue
from typing import Any

import pytest
from launchers import finish, on_ray
from runs_on_ranks import bytes_of, figures_of, written
from verb import sleuth

from benchmarks.ranks_killed import ranks_of
from sleuth.recipe import load_recipe
from sleuth.runs.interruption import SAME_REQUEST_SECONDS, Interrupted
from sleuth.runs.run_folder import LAUNCHER, RunFolder, RunLock
from sleuth.training import ray_ranks
from sleuth.training.ray_ranks import RanksEndedError, RayCluster, describe_failures, forward_output
from sleuth.types import SleuthError, TransientError

RAY = ("--ray", "local", "--ranks", "2")


@pytest.fixture
def no_ray(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)


# -- before Ray ------------------------------------------------------------------------------------------------------


def test_without_ray_a_line_says_what_to_install(recipes, tmp_path, no_ray):
    result = sleuth("train", recipes["grpo"], "--run", tmp_path / "run", *RAY)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert 'pip install "sleuth[ray]"' in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--ray", "local"), "say it with --ranks N"),
        (("--ranks", "2"), "torchrun has --nproc-per-node"),
        (("--restarts", "0"), "torchrun has --nproc-per-node"),
        ((*RAY, "--set", "stage.0.data.questions=nowhere.jsonl"), "nowhere.jsonl"),
        ((*RAY, "--set", "stage.0.optimiser=muon"), "2 ranks hold parts of them"),
    ],
)
def test_wrong_input_is_refused_before_ray_starts(recipes, tmp_path, no_ray, arguments, line):
    result = sleuth("train", recipes["grpo"], "--run", tmp_path / "run", *arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert line in result.stderr
    assert not (tmp_path / "run").exists()


def test_ray_and_torchrun_together_are_refused(recipes, no_ray, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = sleuth("train", recipes["grpo"], *RAY)
    assert result.exit_code == 2
    assert "without torchrun" in result.stderr


def test_a_folder_of_another_run_is_refused_before_ray_starts(recipes, tmp_path, no_ray):
    with RunFolder.open(tmp_path, load_recipe(recipes["supervised"])) as folder:
        folder.metrics.append("supervised", 1, {"loss": 0.5})
    before = written(tmp_path)
    result = sleuth("train", recipes["grpo"], "--run", tmp_path, *RAY)
    assert result.exit_code == 2
    assert "holds another run" in result.stderr
    assert written(tmp_path) == before


def test_a_run_that_is_being_written_may_be_free_later(recipes, tmp_path):
    recipe = load_recipe(recipes["grpo"])
    with RunFolder.open(tmp_path, recipe), pytest.raises(TransientError, match="is writing this run"):
        RunFolder.require(tmp_path, recipe)
    RunFolder.require(tmp_path, recipe)
    RunLock(tmp_path).release()


def test_a_folder_with_only_a_launchers_notes_counts_as_empty(recipes, tmp_path):
    (tmp_path / LAUNCHER).mkdir()
    RunFolder.open(tmp_path, load_recipe(recipes["grpo"])).close()


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "head:door"])
def test_an_invalid_address_is_refused_with_the_valid_forms(address):
    with pytest.raises(SleuthError, match=r'should be "local", "auto" on a machine of the cluster, or HOST:PORT'):
        ray_ranks._require_reachable(address)


def test_an_unreachable_address_is_refused_in_one_line():
    with pytest.raises(SleuthError, match=r"--ray 127\.0\.0\.1:1: nobody answers there \(Connection refused\)"):
        ray_ranks._require_reachable("127.0.0.1:1")


# -- in place of Ray -------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch) -> list[RayCluster]:
    """What Ray is asked for; the work is done by one process, here."""
    places: list[RayCluster] = []

    def run_here(work: Callable[[], None], place: RayCluster) -> None:
        places.append(place)
        work()

    monkeypatch.setattr(ray_ranks, "require_ray", lambda address: None)
    monkeypatch.setattr(ray_ranks, "run_on_ray", run_here)
    return places


def test_ray_gets_the_resources_of_the_command_and_the_recipe(recipes, tmp_path, asked):
    for device, restarts in (("auto", ()), ("cpu", ("--restarts", "0"))):
        arguments = ("--set", f"device={device}", "--run", tmp_path / device, "--ray", "head:6379", "--ranks", "2")
        result = sleuth("train", recipes["supervised"], *arguments, *restarts)
        assert result.exit_code == 0
        assert "the last checkpoint" in result.stdout
    anywhere, nowhere = asked
    assert (anywhere.address, anywhere.ranks, anywhere.restarts, anywhere.gpus) == ("head:6379", 2, 3, None)
    assert (nowhere.restarts, nowhere.gpus) == (0, False)
    assert anywhere.notes == tmp_path / "auto" / LAUNCHER


def test_a_run_is_rolled_back_once_and_not_by_each_start(recipes, tmp_path, asked, monkeypatch):
    train = ("train", recipes["grpo"], "--run", tmp_path, "--set", "stage.0.stop_after=2")
    assert sleuth(*train).exit_code == 0
    once = ray_ranks.run_on_ray
    monkeypatch.setattr(ray_ranks, "run_on_ray", lambda work, place: (once(work, place), once(work, place)))
    result = sleuth(*train, *RAY, "--roll-back")
    assert result.exit_code == 0, result.stderr
    assert len(asked) == 2
    assert result.stderr.count("back from step 2 to step 2") == 1


def test_ranks_that_ended_for_good_are_a_line_and_a_failed_run(recipes, tmp_path, asked, monkeypatch):
    def end(work: Callable[[], None], place: RayCluster) -> None:
        raise RanksEndedError("the ranks ended")

    monkeypatch.setattr(ray_ranks, "run_on_ray", end)
    result = sleuth("train", recipes["supervised"], "--run", tmp_path, *RAY)
    assert (result.exit_code, result.stderr) == (1, "error: the ranks ended\n")


# -- what is told ----------------------------------------------------------------------------------------------------


class RaisedError(Exception):
    """As Ray hands over what a worker raised."""

    def __init__(self, error: BaseException) -> None:
        super().__init__("Traceback ...\nof the worker\n")
        self._base_exc = error


def test_ranks_that_only_lost_others_are_left_out_if_there_is_another_reason():
    lost, gone = RaisedError(TransientError("rank 0 lost the others")), RuntimeError("the actor died")
    assert describe_failures({0: lost, 1: gone}) == (
        "rank 1: its process is gone; it was killed, or its machine failed\n"
    )
    assert describe_failures({0: lost}) == "rank 0: rank 0 lost the others\n"


def test_a_bug_is_printed_with_its_traceback_and_a_full_disk_in_one_line():
    assert describe_failures({0: RaisedError(KeyError("x")), 1: RaisedError(OSError(28, "No space left"))}) == (
        "rank 0: Traceback ...\nof the worker\nrank 1: [Errno 28] No space left\n"
    )


def test_the_output_of_rank_0_arrives_line_by_line():
    sent: Any = SimpleQueue()
    with forward_output(sent):
        print("grpo", "1/4")
        print("half", end="")
        print("error", file=sys.stderr)
    lines = [sent.get() for _ in range(sent.qsize())]
    assert lines == [("stdout", "grpo 1/4\n"), ("stderr", "error\n"), ("stdout", "half")]


def test_a_user_error_of_a_rank_ends_the_run():
    messages: Any = FakeQueue([("stdout", "one\n"), ("error", (SleuthError, "rank 1: no such card"))])
    with (
        redirect_stdout(io.StringIO()) as said,
        pytest.raises(SleuthError, match="rank 1: no such card"),
    ):
        ray_ranks._follow(lambda: time.sleep(0.1), messages)
    assert said.getvalue() == "one\n"


def test_the_first_signal_is_passed_on_and_the_second_ends_the_command(tmp_path):
    file = tmp_path / "ray/signal"
    ray_ranks._forward(file, signal.SIGINT, None)
    ray_ranks._forward(file, signal.SIGINT, None)  # the same request, sent twice
    assert file.read_text() == "2"
    os.utime(file, (0, time.time() - SAME_REQUEST_SECONDS - 1))
    with pytest.raises(Interrupted) as ended:
        ray_ranks._forward(file, signal.SIGTERM, None)
    assert ended.value.status == 143


def test_ranks_that_saved_their_step_end_the_command_as_interrupted():
    messages: Any = FakeQueue([("stopped", ("saved at step 2; the same command goes on", signal.SIGINT))])
    with pytest.raises(Interrupted, match="saved at step 2") as ended:
        ray_ranks._follow(lambda: time.sleep(0.1), messages)
    assert ended.value.status == 130


class FakeQueue(SimpleQueue):
    """As Ray's: it can tell that it is empty, and waits so long."""

    def __init__(self, items: list[object]) -> None:
        super().__init__()
        for item in items:
            self.put(item)


# -- with Ray --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_by_ray_has_the_same_bytes_as_one_by_torchrun(recipes, under_torchrun, tmp_path):
    pytest.importorskip("ray", reason='Ray is not installed: pip install "sleuth[ray]"')
    folder = tmp_path / "run"
    process = on_ray("train", str(recipes["grpo"]), "--run", str(folder))
    said = finish(process)
    assert process.returncode == 0, said
    assert said.count("grpo 4/4 reward") == 1
    assert said.endswith(f"the last checkpoint. Look at the run with `sleuth report {folder}`.\n")
    assert written(folder) == written(under_torchrun)
    assert bytes_of(folder) == bytes_of(under_torchrun)
    assert figures_of(folder) == figures_of(under_torchrun)


@pytest.mark.slow
def test_the_first_ctrl_c_saves_the_step_and_the_same_command_goes_on(recipes, under_torchrun, tmp_path):
    pytest.importorskip("ray", reason='Ray is not installed: pip install "sleuth[ray]"')
    folder = tmp_path / "run"
    process = on_ray("train", str(recipes["grpo"]), "--run", str(folder))
    while process.poll() is None and not list(folder.glob("checkpoints/step-000002")):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said = finish(process)
    assert process.returncode == 130, said
    assert said.endswith("; the same command goes on\n")
    again = on_ray("train", str(recipes["grpo"]), "--run", str(folder))
    assert "continuing at step" in finish(again)
    assert bytes_of(folder) == bytes_of(under_torchrun)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_killed_is_started_again_by_ray(recipes, under_torchrun, tmp_path, killed):
    pytest.importorskip("ray", reason='Ray is not installed: pip install "sleuth[ray]"')
    folder = tmp_path / "run"
    process = on_ray("train", str(recipes["grpo"]), "--run", str(folder))
    ranks = ranks_of(process, folder)
    while process.poll() is None and not list(folder.glob("checkpoints/step-000002")):
        time.sleep(0.02)
    os.kill(ranks[killed], signal.SIGKILL)
    said = finish(process)
    assert process.returncode == 0, said
    assert f"rank {killed}: its process is gone" in said
    assert "the ranks are started again (1 of 3)" in said
    assert bytes_of(folder) == bytes_of(under_torchrun)
    assert figures_of(folder) == figures_of(under_torchrun)


@pytest.mark.slow
def test_without_restarts_a_killed_rank_ends_the_run(recipes, tmp_path):
    pytest.importorskip("ray", reason='Ray is not installed: pip install "sleuth[ray]"')
    process = on_ray("train", str(recipes["grpo"]), "--run", str(tmp_path / "run"), "--restarts", "0")
    os.kill(ranks_of(process, tmp_path / "run")[1], signal.SIGKILL)
    said = finish(process)
    assert process.returncode == 1
    assert said.splitlines()[-1].startswith("error: the ranks ended and are not started again (--restarts)")
    assert "Traceback" not in said
