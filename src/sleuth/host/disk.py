"""Disk space: how much is free, how much a run needs, and how to recognise a full disk."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sleuth.types import SleuthError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A full disk, a quota, and a file at the limit of its size (`ulimit -f`)."""
SLACK = 2**20
"""Bytes of a checkpoint's small files beside its tensors: tokenizer, cards, configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPlan:
    """Disk space of a run's checkpoints. `weights` and `state` are bytes of one checkpoint; `resumable` checkpoints are
    kept with their state and `milestones` without.

    `DiskPlan(weights=8e9, state=32e9, resumable=3, milestones=30).peak` is 400e9 with the one being written.
    """

    weights: int
    state: int
    resumable: int
    milestones: int

    @property
    def one(self) -> int:
        """Bytes of one resumable checkpoint."""
        return self.weights + self.state

    @property
    def least(self) -> int:
        """Bytes needed to save once beside the last good checkpoint."""
        return 2 * self.one

    @property
    def peak(self) -> int:
        """The most bytes that checkpoints take at any moment if none is removed early."""
        return (self.resumable + 1) * self.one + self.milestones * self.weights


def free_bytes(place: Path) -> int:
    """Bytes that this user may still write on the disk of `place`, which need not exist yet."""
    existing = next(path for path in (place, *place.absolute().parents) if path.exists())
    filesystem = os.statvfs(existing)
    return filesystem.f_bavail * filesystem.f_frsize


def bytes_in(place: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


def require_room(place: Path, plan: DiskPlan, held: int = 0) -> str | None:
    """A warning if the plan fits only by removing older checkpoints before each save, else None.

    `held` bytes of the plan are on the disk already. Raises SleuthError if not even two checkpoints fit.
    """
    room = free_bytes(place) + held
    if room < plan.least:
        raise SleuthError(
            f"{place}: {shown(room)} are free on this disk, and a checkpoint takes {shown(plan.one)}: the last good "
            f"one and the next one need {shown(plan.least)}; make room, or choose another disk with --run"
        )
    if room < plan.peak:
        return (
            f"{shown(room)} are free on the disk, and this run's checkpoints may hold {shown(plan.peak)}: "
            "older ones will be removed before a save where both do not fit"
        )
    return None


def require_free(place: Path, needed: int) -> None:
    """Raises OSError (ENOSPC) if `needed` bytes do not fit."""
    if free_bytes(place) < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place))


@contextmanager
def recognising_full_disk(place: Path) -> Iterator[None]:
    """Converts what libraries raise when the disk of `place` is full into OSError (ENOSPC), and where a file in `place`
    has the size that files may have into OSError (EFBIG)."""
    try:
        yield
    except Exception as error:
        text = str(error)
        if not is_full(error) and (f"os error {errno.EFBIG}" in text or _holds_largest_file(place)):
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(place)) from error
        names_it = "os error 28" in text or os.strerror(errno.ENOSPC) in text
        if is_full(error) or not (names_it or free_bytes(place) < SLACK):
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place)) from error


def is_full(error: BaseException) -> bool:
    """Whether the error is a full disk, an exhausted quota or a file at the limit of its size."""
    return isinstance(error, OSError) and error.errno in FULL


def lack(error: OSError) -> str:
    """What `is_full` found missing, in words."""
    if error.errno != errno.EFBIG:
        return "no room on the disk"
    return "no larger file is allowed here (`ulimit -f`): no room"


def _holds_largest_file(place: Path) -> bool:
    """Whether a file in `place` has grown to the limit of this process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY:
        return False
    return any(path.stat().st_size >= limit for path in place.rglob("*") if path.is_file())


def shown(count: float) -> str:
    """Bytes for people: "1.8 MB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class Shortages:
    """A folder of empty files: `grpo@4096` records that an update of stage `grpo` ran out of memory with 4,096 tokens.

    The rank that ran out of memory writes the file itself, because rank 0 is waiting for it within the update. Several
    ranks may write the same file at once.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def note(self, stage: str, tokens: int) -> None:
        """Records that an update of `tokens` tokens ran out of memory."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / f"{stage}@{tokens}").touch()

    def forget(self) -> None:
        """Removes all records."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def fitting(self, stage: str, tokens: int) -> int:
        """`tokens`, or half of the fewest that ran out of memory."""
        failed = [int(file.name.rpartition("@")[2]) for file in self.folder.glob(f"{stage}@*")]
        return min([tokens, *(count // 2 for count in failed)])
