"""A disk that is really full: a small file system in memory, filled to the last byte."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from run_files import figures, groups, log, weights
from transformers import AutoModelForCausalLM, AutoTokenizer

from sleuth.host.atomic import PARTIAL
from sleuth.host.disk import is_full
from sleuth.runs import checkpoints
from sleuth.runs.checkpoints import load_state, save_checkpoint
from sleuth.training.grpo import GRPOTrainer
from sleuth.types import SleuthError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs tmpfs")
ROOT = Path(__file__).parents[2]
MEGABYTES = 40


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A file system of MEGABYTES."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a file system")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


class Filler:
    """A file that takes all the room there is but `left` bytes."""

    def __init__(self, disk: Path) -> None:
        self.file = disk / "filler"
        self.until = 0

    def fill(self, left: int = 0) -> None:
        self.empty()
        free = os.statvfs(self.file.parent)
        with self.file.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - left)

    def empty(self) -> None:
        self.file.unlink(missing_ok=True)


@contextmanager
def finds_no_room() -> Iterator[None]:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - is_full looks closer
        yield
    assert is_full(caught.value)


@pytest.mark.parametrize("left", [0, 100_000, 2_000_000, 3_500_000], ids=["at once", "weights", "state", "late state"])
def test_a_checkpoint_that_finds_no_room_leaves_the_last_one_and_no_half_of_itself(disk, left, monkeypatch):
    monkeypatch.setattr(checkpoints, "require_free", lambda *_: None)  # so that libraries run into the end of the disk
    base = ROOT / "models" / "tiny-base"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    state = {"moments": torch.ones(500_000)}
    first, second = disk / "step-000001", disk / "step-000002"
    save_checkpoint(first, model, tokenizer, card="", state=state)
    Filler(disk).fill(left)
    with finds_no_room():
        save_checkpoint(second, model, tokenizer, card="", state=state)
    assert sorted(place.name for place in disk.iterdir()) == ["filler", "step-000001"]
    assert load_state(first)["moments"].sum() == 500_000
    Filler(disk).empty()
    save_checkpoint(second, model, tokenizer, card="", state=state)
    AutoModelForCausalLM.from_pretrained(second)


@pytest.fixture
def crowd(disk, finished, monkeypatch) -> Filler:
    """Fills the disk when step 2 begins, and empties it when the step `until` does."""
    finished()  # which is made before anything is patched
    step, filler = GRPOTrainer.step, Filler(disk)

    def crowded(self: GRPOTrainer, number: int) -> dict[str, Any]:
        if number == filler.until:
            filler.empty()
        elif number == 2:
            filler.fill()
        return step(self, number)

    monkeypatch.setattr(GRPOTrainer, "step", crowded)
    return filler


@pytest.mark.sentinel
def test_a_run_on_a_disk_that_is_full_for_two_steps_is_the_run_that_always_had_room(
    run, finished, recipe_file, disk, crowd
):
    whole = finished()
    crowd.until = 4
    last = run(recipe_file, disk / "run")
    assert weights(last) == weights(whole)
    assert figures(disk / "run") == figures(whole.parents[1])
    assert groups(disk / "run") == groups(whole.parents[1])
    assert not list((disk / "run").rglob(f"*{PARTIAL}"))
    for said in (
        "no room on the disk for the rollouts of step 2",
        "step 2: no room on the disk for a checkpoint; the last good one is none yet",
        "there is room on the disk again",
    ):
        assert said in log(disk / "run")


def test_a_disk_that_is_full_to_the_end_is_told_in_one_line_and_the_run_goes_on_from_its_last_save(
    run, finished, recipe_file, disk, crowd
):
    every = "stage.1.save_every=1"
    with pytest.raises(SleuthError, match=r"the disk is full.*run the same command"):
        run(recipe_file, disk / "run", every)
    assert [place.name for place in (disk / "run" / "checkpoints").iterdir()] == ["step-000001"]
    crowd.empty()
    crowd.until = 2
    assert weights(run(recipe_file, disk / "run", every)) == weights(finished())
