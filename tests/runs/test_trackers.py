"""Trackers beside `metrics.jsonl`. What the real packages write is read back, where they are installed."""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from sleuth.runs import trackers
from sleuth.runs.trackers import TRACKERS, curves, open_trackers
from sleuth.types import SleuthError

CONFIG = {"seed": 5, "stage": [{"kind": "grpo", "steps": 4}]}


class Written:
    """A tracker that remembers."""

    def __init__(self, folder: Path, run_name: str, config: Mapping[str, Any]) -> None:
        self.rows: list[tuple[str, int, dict[str, float]]] = []
        self.closed = False

    def log(self, stage: str, step: int, figures: Mapping[str, Any]) -> None:
        self.rows.append((stage, step, dict(figures)))

    def close(self) -> None:
        self.closed = True


class Broken(Written):
    """Raises at the second step."""

    def log(self, stage: str, step: int, figures: Mapping[str, Any]) -> None:
        super().log(stage, step, figures)
        if step == 2:
            raise OSError("two\nlines")


class Hanging(Written):
    """Never comes back from its first step, until it is let go."""

    free = Event()

    def log(self, stage: str, step: int, figures: Mapping[str, Any]) -> None:
        self.free.wait(20)


class Made(dict[str, Any]):
    """The trackers of a test, by their names in `TRACKERS`."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    made = Made()

    def maker(name: str, kind: type[Written]) -> Any:
        def make(*arguments: Any) -> Written:
            made[name] = kind(*arguments)
            return made[name]

        return make

    for kind in (Written, Broken, Hanging):
        monkeypatch.setitem(TRACKERS, kind.__name__.lower(), maker(kind.__name__.lower(), kind))
    return made


def test_figures_without_a_number_are_left_out_and_the_stage_is_part_of_the_name() -> None:
    row = {"reward_mean": 0.5, "searches": 2, "entropy": None, "kl": float("nan"), "not_finite": "loss", "ok": True}
    assert curves("grpo", row) == {"grpo/reward_mean": 0.5, "grpo/searches": 2.0}
    assert curves("grpo", {"em": {"value": 1.0}, "alarms": ["mismatch"]}) == {}


def test_every_tracker_gets_every_row_in_order_and_is_closed(tmp_path: Path, made: Made) -> None:
    said: list[str] = []
    figures = {"loss": 0.5}
    with closing(open_trackers(["written"], tmp_path, "demo", CONFIG, said.append)) as opened:
        for step in (1, 2, 3):
            opened.log("grpo", step, figures)
            figures["loss"] += 1
    assert made["written"].rows == [("grpo", step, {"loss": step - 0.5}) for step in (1, 2, 3)]
    assert made["written"].closed
    assert said == []


def test_a_tracker_that_fails_is_said_once_and_the_others_go_on(tmp_path: Path, made: Made) -> None:
    said: list[str] = []
    with closing(open_trackers(["broken", "written"], tmp_path, "demo", CONFIG, said.append)) as opened:
        for step in (1, 2, 3, 4):
            opened.log("grpo", step, {"loss": 0.5})
            time.sleep(0.02)
    assert said == ["tracker broken: OSError: two lines; dropped; metrics.jsonl has every figure"]
    assert [step for _, step, _ in made["broken"].rows] == [1, 2]
    assert [step for _, step, _ in made["written"].rows] == [1, 2, 3, 4]


def test_a_tracker_that_hangs_slows_neither_the_steps_nor_the_end(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "FINISH_SECONDS", 0.05)
    said: list[str] = []
    begun = time.monotonic()
    with closing(open_trackers(["hanging"], tmp_path, "demo", CONFIG, said.append)) as opened:
        for step in range(100):
            opened.log("grpo", step, {"loss": 0.5})
    assert time.monotonic() - begun < 5
    Hanging.free.set()
    assert said == ["tracker hanging: did not finish in 0.05 seconds; dropped; metrics.jsonl has every figure"]


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_tracker_that_is_not_installed_names_the_command(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(SleuthError) as caught:
        open_trackers([name], tmp_path, "demo", CONFIG, pytest.fail)
    assert str(caught.value) == f'trackers: {name} is not installed; pip install "sleuth[trackers]"'


def test_a_tracker_that_cannot_be_opened_is_told_in_one_line_and_the_others_are_closed(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Any:
        raise ValueError("no\nkey")

    monkeypatch.setitem(TRACKERS, "refusing", refuse)
    with pytest.raises(SleuthError) as caught:
        open_trackers(["written", "refusing"], tmp_path, "demo", CONFIG, pytest.fail)
    expected = "trackers: refusing cannot be opened: ValueError: no key; repair it or remove it from trackers"
    assert str(caught.value) == expected
    assert made["written"].closed


# -- the real packages -----------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run folder of somebody who is logged in everywhere. Nobody may be called from here."""
    for variable in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_CACHE_DIR", "WANDB_ERROR_REPORTING"):
        monkeypatch.setenv(variable, "")  # so that what a tracker sets is taken back
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HF_TOKEN", "hf_somebody")
    called: list[Any] = []

    def refuse(host: Any, *_: Any, **__: Any) -> Any:
        called.append(host)
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield tmp_path
    assert called == []


def two_sessions(name: str, run_folder: Path, pause: float = 0.0) -> None:
    """Steps 1 to 3, a kill that the checkpoint of step 2 survives, and steps 3 and 4."""
    said: list[str] = []
    for steps, reward in (((1, 2, 3), 0.25), ((3, 4), 0.5)):
        with closing(open_trackers([name], run_folder, "demo", CONFIG, said.append)) as opened:
            for step in steps:
                opened.log("grpo", step, {"reward_mean": reward, "entropy": None, "alarms": ["mismatch"]})
        time.sleep(pause)
    assert said == []


def test_tensorboard_shows_each_step_once_as_it_was_done_last(home: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import (  # pyright: ignore[reportMissingImports]
        EventAccumulator,
    )

    two_sessions("tensorboard", home)
    shown = EventAccumulator(str(home / "trackers" / "tensorboard"))
    shown.Reload()
    assert shown.Tags()["scalars"] == ["grpo/reward_mean"]
    points = [(point.step, point.value) for point in shown.Scalars("grpo/reward_mean")]
    assert points == [(1, 0.25), (2, 0.25), (3, 0.5), (4, 0.5)]
    assert b'"kind": "grpo"' in shown.Tensors("recipe/text_summary")[0].tensor_proto.string_val[0]


def test_wandb_stays_offline_and_a_resumed_run_keeps_its_id(home: Path) -> None:
    pytest.importorskip("wandb")
    two_sessions("wandb", home, pause=1.0)  # wandb names its folders by the second
    files = sorted((home / "trackers" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len({file.name for file in files}) == 1
    rows = [history(file) for file in files]
    assert sorted(rows, key=len) == [
        [{"step": step, "grpo/reward_mean": 0.5} for step in (3, 4)],
        [{"step": step, "grpo/reward_mean": 0.25} for step in (1, 2, 3)],
    ]


def history(file: Path) -> list[dict[str, Any]]:
    """The rows that an offline file of wandb holds, without its own figures. It is a log of protobuf records: a header
    of 7 bytes, then for each (in a block of 32 KiB) checksum, length and type in 7 bytes, and the record."""
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportMissingImports]

    content, at, rows = file.read_bytes(), 7, []
    assert len(content) < 2**15
    while at < len(content):
        length = struct.unpack("<H", content[at + 4 : at + 6])[0]
        record = Record.FromString(content[at + 7 : at + 7 + length])
        at += 7 + length
        if record.WhichOneof("record_type") == "history":
            items = {
                (item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item
            }
            rows.append({name: value for name, value in items.items() if not name.startswith("_")})
    return rows
