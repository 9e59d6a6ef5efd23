"""Ranks that Ray starts are those of torchrun; what is wrong is told before Ray starts, or once."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from queue import SimpleQueue
from subprocess import Popen
from typing import Any

import pytest
from processes import finish, on_ray
from run_files import bytes_of, figures, written
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


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (RAY, 'pip install "sleuth[ray]"'),
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


def test_torchrun_or_a_folder_of_another_run_is_refused_before_ray_starts(recipes, tmp_path, no_ray, monkeypatch):
    with RunFolder.open(tmp_path, load_recipe(recipes["supervised"])) as folder:
        folder.metrics.append("supervised", 1, {"loss": 0.5})
    before = written(tmp_path)
    result = sleuth("train", recipes["grpo"], "--run", tmp_path, *RAY)
    assert (result.exit_code, "holds another run" in result.stderr) == (2, True)
    assert written(tmp_path) == before
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = sleuth("train", recipes["grpo"], *RAY)
    assert (result.exit_code, "without torchrun" in result.stderr) == (2, True)


def test_a_run_that_is_being_written_may_be_free_later(recipes, tmp_path):
    recipe = load_recipe(recipes["grpo"])
    with RunFolder.open(tmp_path, recipe), pytest.raises(TransientError, match="is writing this run"):
        RunFolder.require(tmp_path, recipe)
    RunFolder.require(tmp_path, recipe)
    RunLock(tmp_path).release()


def test_a_folder_with_only_a_launchers_notes_counts_as_empty(recipes, tmp_path):
    (tmp_path / LAUNCHER).mkdir()
    RunFolder.open(tmp_path, load_recipe(recipes["grpo"])).close()


FORMS = r'should be "local", "auto" on a machine of the cluster, or HOST:PORT'
NOBODY = r"--ray 127\.0\.0\.1:1: nobody answers there \(Connection refused\)"


@pytest.mark.parametrize(
    ("address", "line"), [("ray://head:10001", FORMS), ("head", FORMS), ("head:door", FORMS), ("127.0.0.1:1", NOBODY)]
)
def test_an_address_that_cannot_be_used_is_one_line(address, line):
    with pytest.raises(SleuthError, match=line):
        ray_ranks._require_reachable(address)


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


LOST, GONE = RaisedError(TransientError("rank 0 lost the others")), RuntimeError("the actor died")
BUG, FULL = RaisedError(KeyError("x")), RaisedError(OSError(28, "No space left"))


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ([LOST, GONE], "rank 1: its process is gone; it was killed, or its machine failed\n"),
        ([LOST], "rank 0: rank 0 lost the others\n"),
        ([BUG, FULL], "rank 0: Traceback ...\nof the worker\nrank 1: [Errno 28] No space left\n"),
    ],
)
def test_ranks_that_only_lost_others_are_left_out_and_a_bug_has_its_traceback(errors, said):
    assert describe_failures(dict(enumerate(errors))) == said


def test_the_output_of_rank_0_arrives_line_by_line():
    sent: Any = SimpleQueue()
    with forward_output(sent):
        print("grpo", "1/4")
        print("half", end="")
        print("error", file=sys.stderr)
    lines = [sent.get() for _ in range(sent.qsize())]
    assert lines == [("stdout", "grpo 1/4\n"), ("stderr", "error\n"), ("stdout", "half")]


class FakeQueue(SimpleQueue):
    """As Ray's: it can tell that it is empty, and waits so long."""

    def __init__(self, items: list[object]) -> None:
        super().__init__()
        for item in items:
            self.put(item)


@pytest.mark.parametrize(
    ("message", "error", "line"),
    [
        (("error", (SleuthError, "rank 1: no such card")), SleuthError, "rank 1: no such card"),
        (("stopped", ("saved at step 2; the same command goes on", signal.SIGINT)), Interrupted, "saved at step 2"),
    ],
)
def test_what_ends_a_rank_ends_the_command(message, error, line):
    messages: Any = FakeQueue([("stdout", "one\n"), message])
    with redirect_stdout(io.StringIO()) as said, pytest.raises(error, match=line) as ended:
        ray_ranks._follow(lambda: time.sleep(0.1), messages)
    assert said.getvalue() == "one\n"
    assert error is SleuthError or ended.value.status == 130


def test_the_first_signal_is_passed_on_and_the_second_ends_the_command(tmp_path):
    file = tmp_path / "ray/signal"
    ray_ranks._forward(file, signal.SIGINT, None)
    ray_ranks._forward(file, signal.SIGINT, None)  # the same request, sent twice
    assert file.read_text() == "2"
    for ago in (SAME_REQUEST_SECONDS + 1, -3600):  # or the clock was set back
        os.utime(file, (0, time.time() - ago))
        with pytest.raises(Interrupted) as ended:
            ray_ranks._forward(file, signal.SIGTERM, None)
        assert ended.value.status == 143


# -- with Ray --------------------------------------------------------------------------------------------------------


@pytest.fixture
def start(recipes, tmp_path) -> Callable[..., Popen[str]]:
    """Starts the recipe's run in the folder `run`, by Ray."""
    pytest.importorskip("ray", reason='Ray is not installed: pip install "sleuth[ray]"')
    return lambda *more: on_ray("train", str(recipes["grpo"]), "--run", str(tmp_path / "run"), *more)


def after_two_steps(process: Popen[str], folder: Path) -> None:
    while process.poll() is None and not list(folder.glob("checkpoints/step-000002")):
        time.sleep(0.02)


@pytest.mark.slow
def test_a_run_by_ray_has_the_same_bytes_as_one_by_torchrun(start, under_torchrun, tmp_path):
    folder, process = tmp_path / "run", start()
    said = finish(process)
    assert process.returncode == 0, said
    assert said.count("grpo 4/4 reward") == 1
    assert said.endswith(f"the last checkpoint. Look at the run with `sleuth report {folder}`.\n")
    assert written(folder) == written(under_torchrun)
    assert bytes_of(folder) == bytes_of(under_torchrun)
    assert figures(folder) == figures(under_torchrun)


@pytest.mark.slow
def test_the_first_ctrl_c_saves_the_step_and_the_same_command_goes_on(start, under_torchrun, tmp_path):
    process = start()
    after_two_steps(process, tmp_path / "run")
    process.send_signal(signal.SIGINT)
    said = finish(process)
    assert process.returncode == 130, said
    assert said.endswith("; the same command goes on\n")
    assert "continuing at step" in finish(start())
    assert bytes_of(tmp_path / "run") == bytes_of(under_torchrun)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_killed_is_started_again_by_ray(start, under_torchrun, tmp_path, killed):
    folder, process = tmp_path / "run", start()
    ranks = ranks_of(process, folder)
    after_two_steps(process, folder)
    os.kill(ranks[killed], signal.SIGKILL)
    said = finish(process)
    assert process.returncode == 0, said
    assert f"rank {killed}: its process is gone" in said
    assert "the ranks are started again (1 of 3)" in said
    assert bytes_of(folder) == bytes_of(under_torchrun)
    assert figures(folder) == figures(under_torchrun)


@pytest.mark.slow
def test_without_restarts_a_killed_rank_ends_the_run(start, tmp_path):
    process = start("--restarts", "0")
    os.kill(ranks_of(process, tmp_path / "run")[1], signal.SIGKILL)
    said = finish(process)
    assert process.returncode == 1
    assert said.splitlines()[-1].startswith("error: the ranks ended and are not started again (--restarts)")
    assert "Traceback" not in said
