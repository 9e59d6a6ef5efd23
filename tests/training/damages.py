"""What may befall a file of a run, and a bound on how long anything may take."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def one_bit(content: bytes) -> bytes:
    at = random.Random(0).randrange(len(content) // 4, len(content) // 2)
    return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[: len(content) // 2],
    "one bit": one_bit,
    "zeros": lambda content: bytes(len(content)),
}
IN_PLACE = ("pipe", "socket", "device", "loop", "dead link")
"""What no program may open, whatever it reads the file for."""


def remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def damage(kind: str, place: Path) -> None:
    """Changes the content of a file, removes it, or puts something else in its place."""
    if kind in CONTENTS:
        before = place.read_bytes()
        place.write_bytes(CONTENTS[kind](before))
        assert place.read_bytes() != before
        return
    remove(place)
    place.parent.mkdir(exist_ok=True)
    match kind:
        case "file":
            place.touch()
        case "pipe":
            os.mkfifo(place)
        case "socket":
            with socket.socket(socket.AF_UNIX) as listening:
                here = os.open(place.parent, os.O_RDONLY)  # a path of a socket has at most 107 bytes
                listening.bind(f"/proc/self/fd/{here}/{place.name}")
                os.close(here)
        case "device":
            place.symlink_to("/dev/zero")
        case "loop":
            place.symlink_to(place.name)
        case "dead link":
            place.symlink_to("nowhere")
        case "folder":
            place.mkdir()
        case _:
            assert kind == "removed", kind


@contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise AssertionError(f"it waits for more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
