"""Ctrl-C and SIGTERM: a run that was asked to end, and continued, is the run that nobody stopped."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_files import evaluation, log
from test_kills import outcome
from typer.testing import Result
from verb import sleuth

from sleuth.evaluation.eval_session import EvalSession
from sleuth.ranks import Ranks
from sleuth.runs.interruption import SAME_REQUEST_SECONDS, Interrupted, StopRequest, forwarded_to
from sleuth.training.grpo import GRPOTrainer

BRIEF = ("stage.0.data.limit=1", "stage.1.prompts_per_step=2", "stage.1.env.turn_tokens=12", "stage.2.data.limit=1")
STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}
SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])


def send(*numbers: int) -> None:
    """Sends signals to this process, far enough apart to be several requests."""
    for at, number in enumerate(numbers):
        time.sleep(SAME_REQUEST_SECONDS + 0.1 if at else 0)
        os.kill(os.getpid(), number)


def interrupting(monkeypatch: pytest.MonkeyPatch, step: int, *numbers: int) -> None:
    """The next GRPO step `step` gets these signals once its episodes are played."""
    original, sent = GRPOTrainer._update, list[int]()

    def update(trainer: GRPOTrainer, *arguments: Any) -> Any:
        if not sent and trainer.engine.policy_version == step - 1:
            sent.extend(numbers)
            send(*numbers)
        return original(trainer, *arguments)

    monkeypatch.setattr(GRPOTrainer, "_update", update)


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def train(recipe_file) -> Callable[[Path], Result]:
    return lambda folder: sleuth("train", recipe_file, "--run", folder, *(f"--set={override}" for override in BRIEF))


@pytest.fixture
def whole(once, train) -> Path:
    def make(folder: Path) -> None:
        assert train(folder).exit_code == 0

    return once("never-interrupted", make)


@pytest.mark.parametrize(
    ("step", "number"), [pytest.param(1, signal.SIGTERM, marks=pytest.mark.slow), (3, signal.SIGINT)]
)
def test_an_interrupted_and_continued_run_is_the_run_that_nobody_stopped(
    train, folder, whole, monkeypatch, step, number
):
    interrupting(monkeypatch, step, number)
    stopped = train(folder)
    assert stopped.exit_code == STATUS[number]
    assert stopped.stderr.endswith(f"saved at step {step}; the same command goes on\n")
    assert f"{number.name}: finishing the step, then saving" in log(folder)
    assert max(path.name for path in (folder / "checkpoints").iterdir()) == f"step-{step:06d}"
    assert train(folder).exit_code == 0
    assert outcome(folder) == outcome(whole)


@SIGNALS
def test_a_second_signal_ends_the_run_in_the_middle_of_a_step(train, folder, whole, monkeypatch, number):
    interrupting(monkeypatch, 3, number, number)
    stopped = train(folder)
    assert stopped.exit_code == STATUS[number]
    assert stopped.stderr.endswith("interrupted\n")
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000002"]
    assert train(folder).exit_code == 0
    assert outcome(folder) == outcome(whole)


@SIGNALS
def test_an_evaluation_ends_at_once_and_nothing_trained_is_lost(train, folder, whole, monkeypatch, number):
    shutil.copytree(whole, folder)
    (folder / "eval" / "trained.json").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(EvalSession, "ask", lambda *_: send(number))
        stopped = train(folder)
    assert (stopped.exit_code, stopped.stderr.splitlines()[-1]) == (STATUS[number], "interrupted")
    assert not (folder / "eval" / "trained.json").exists()
    assert train(folder).exit_code == 0
    assert outcome(folder) == outcome(whole)
    assert evaluation(folder, "trained")["records"] == evaluation(whole, "trained")["records"]


def test_an_interrupted_run_without_room_for_a_checkpoint_names_the_last_one(train, folder, monkeypatch):
    interrupting(monkeypatch, 3, signal.SIGINT)
    saved = lambda trainer, context, step, last: None if step == 3 else trainer.save(step)  # noqa: E731
    monkeypatch.setattr("sleuth.training.loop._saved", saved)
    stopped = train(folder)
    assert stopped.exit_code == 130
    assert "stopped at step 3 without room for its checkpoint; the same command goes on from " in stopped.stderr
    assert stopped.stderr.endswith("checkpoints/step-000002\n")


def test_signals_in_quick_succession_are_one_request_and_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT)
    told: list[str] = []
    with StopRequest(told.append) as request:
        assert request.agreed(Ranks()) is None
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.agreed(Ranks()) == signal.SIGTERM
        with pytest.raises(Interrupted) as caught:
            send(signal.SIGINT, signal.SIGINT)
    assert caught.value.status == 130
    assert told == ["SIGTERM: finishing the step, then saving; a second one ends at once"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_that_the_process_ignores_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StopRequest(print) as request:
        os.kill(os.getpid(), signal.SIGINT)
        assert request.agreed(Ranks()) is None
    signal.signal(signal.SIGINT, before)


def test_a_signal_that_a_launcher_received_is_read_from_its_file(tmp_path):
    told: list[str] = []
    with forwarded_to(tmp_path / "signal"), StopRequest(told.append) as request:
        assert request.agreed(Ranks()) is None
        (tmp_path / "signal").write_text("15")
        assert [request.agreed(Ranks()) for _ in range(2)] == [signal.SIGTERM] * 2
    assert told == ["SIGTERM: finishing the step, then saving; a second one ends at once"]
    with StopRequest(told.append) as request:  # of a process that no such launcher started
        assert request.agreed(Ranks()) is None
