from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from sleuth.runs.run_folder import MAX_WAITING, Backlog
from sleuth.types import SleuthError


class Disk:
    """A disk that is full or not, and what was written to it."""

    def __init__(self) -> None:
        self.full = False
        self.written: list[int] = []

    def write(self, number: int) -> Callable[[], None]:
        def action() -> None:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.written.append(number)

        return action


def test_what_finds_no_room_waits_and_is_written_in_order_when_there_is_room() -> None:
    disk, said = Disk(), []
    backlog = Backlog(said.append)
    for number in range(6):
        disk.full = 2 <= number < 5
        backlog.write(f"row {number}", disk.write(number))
    assert disk.written == [0, 1, 2, 3, 4, 5]
    assert said == [
        "no room on the disk for row 2: it waits, and the run goes on",
        "there is room on the disk again: all waiting files are written",
    ]


def test_an_error_that_is_no_full_disk_is_raised() -> None:
    def forbidden() -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with pytest.raises(PermissionError):
        Backlog(lambda line: None).write("row", forbidden)


def test_a_disk_that_stays_full_ends_the_run_in_one_line() -> None:
    disk = Disk()
    disk.full = True
    backlog = Backlog(lambda line: None)
    for number in range(MAX_WAITING):
        backlog.write(f"row {number}", disk.write(number))
    with pytest.raises(SleuthError, match="the first of them row 0; make room"):
        backlog.write("row", disk.write(MAX_WAITING))
