from __future__ import annotations

import errno
from pathlib import Path

import pytest
from safetensors import SafetensorError

from sleuth.host import disk
from sleuth.host.disk import DiskPlan, free_bytes, is_full, recognising_full_disk, require_free, require_room
from sleuth.types import SleuthError

PLAN = DiskPlan(weights=100, state=300, resumable=3, milestones=5)


def test_the_peak_counts_what_is_kept_what_is_being_written_and_the_milestones() -> None:
    assert (PLAN.one, PLAN.least, PLAN.peak) == (400, 800, 4 * 400 + 5 * 100)


def test_a_plan_that_fits_says_nothing_one_that_fits_by_pruning_says_so_and_one_that_never_fits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda place: 1_000)
    assert require_room(tmp_path, PLAN, held=1_100) is None
    assert require_room(tmp_path, PLAN, held=1_099) == (
        "2.1 kB are free on the disk, and this run's checkpoints may hold 2.1 kB: "
        "older ones will be removed before a save where both do not fit"
    )
    monkeypatch.setattr(disk, "free_bytes", lambda place: 799)
    with pytest.raises(SleuthError, match="799 bytes are free on this disk, and a checkpoint takes 400 bytes"):
        require_room(tmp_path, PLAN)


def test_the_free_room_of_a_folder_that_does_not_exist_yet_is_that_of_its_disk(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "not" / "there") == pytest.approx(free_bytes(tmp_path), rel=0.1)
    require_free(tmp_path / "not" / "there", 1)
    with pytest.raises(OSError, match="No space left") as caught:
        require_free(tmp_path, 2**62)
    assert is_full(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed: No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
    ],
)
def test_whatever_a_library_raises_on_a_full_disk_is_told_as_a_full_disk(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(OSError) as caught, recognising_full_disk(tmp_path):  # noqa: PT011 - is_full looks closer
        raise error
    assert is_full(caught.value)


def test_an_error_of_another_kind_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="shapes"), recognising_full_disk(tmp_path):
        raise RuntimeError("shapes do not match")
