"""Room on the disk: how much there is, how much a run will take, and what a full disk looks like."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sleuth.types import SleuthError

FULL = (errno.ENOSPC, errno.EDQUOT)
SLACK = 2**20
"""What a checkpoint's small files take beside its tensors: tokenizer, cards, configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPlan:
    """What the checkpoints of a run take. `weights` and `state` are bytes of one; `resumable` of them are kept with
    their state and `milestones` without.

    `DiskPlan(weights=8e9, state=32e9, resumable=3, milestones=30).peak` is 440e9: the one being written counts too.
    """

    weights: int
    state: int
    resumable: int
    milestones: int

    @property
    def one(self) -> int:
        """Bytes of one checkpoint that a run can go on from."""
        return self.weights + self.state

    @property
    def least(self) -> int:
        """Bytes without which a run could not save even once beside its last good save."""
        return 2 * self.one

    @property
    def peak(self) -> int:
        """The most bytes that checkpoints hold at any moment if nothing has to make room."""
        return (self.resumable + 1) * self.one + self.milestones * self.weights


def free_bytes(place: Path) -> int:
    """What this user may still write on the disk of `place`, which need not exist yet."""
    there = next(path for path in (place, *place.absolute().parents) if path.exists())
    found = os.statvfs(there)
    return found.f_bavail * found.f_frsize


def bytes_in(place: Path) -> int:
    """What a folder holds."""
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


def require_room(place: Path, plan: DiskPlan, held: int = 0) -> str | None:
    """What to say before the first step, if anything: that the plan fits only by pruning before each save.

    `held` bytes are taken by what the plan counts already. Raises SleuthError where not even two checkpoints fit.
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
    """Raises OSError (ENOSPC), before a byte is written, where `needed` bytes do not fit."""
    if free_bytes(place) < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place))


@contextmanager
def telling_full_disks(place: Path) -> Iterator[None]:
    """Turns what libraries raise when the disk of `place` fills up into the OSError (ENOSPC) that the system raised."""
    try:
        yield
    except Exception as error:
        text = str(error)
        told = "os error 28" in text or os.strerror(errno.ENOSPC) in text
        if is_full(error) or not (told or free_bytes(place) < SLACK):
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place)) from error


def is_full(error: BaseException) -> bool:
    """Whether there was no room, or no quota, for what was being written."""
    return isinstance(error, OSError) and error.errno in FULL


def shown(count: float) -> str:
    """Bytes for people: "1.8 MB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class Shortages:
    """A folder of empty files: `grpo@4096` says that an update of stage `grpo` did not fit with 4,096 tokens at once.

    The rank that ran out of memory notes it itself: the first one, which writes the run otherwise, waits for it in the
    middle of the update. Several may note the same at the same moment.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def note(self, stage: str, tokens: int) -> None:
        """An update with so many tokens at once did not fit."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / f"{stage}@{tokens}").touch()

    def fitting(self, stage: str, tokens: int) -> int:
        """So many tokens at once, or half of the fewest that did not fit."""
        noted = [int(place.name.rpartition("@")[2]) for place in self.folder.glob(f"{stage}@*")]
        return min([tokens, *(each // 2 for each in noted)])
