"""Writes that either happened or did not: aside, onto the disk, then renamed into place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".partial"
"""Ends the name of what is still being written. Nothing reads such a file or folder."""


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Yields a path to write to. It takes the place of `path` when the block ends well, and goes away when it fails."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        yield partial
        _to_disk(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _to_disk(path.parent)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder. It takes the place of `path` when the block ends well, and goes away when it fails."""
    partial = path.with_name(path.name + PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        for place in [*partial.rglob("*"), partial]:
            _to_disk(place)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    replaced = path.with_name(path.name + ".replaced" + PARTIAL)
    if path.exists():  # a folder cannot be renamed onto a full one
        shutil.rmtree(replaced, ignore_errors=True)
        path.rename(replaced)
    partial.rename(path)
    _to_disk(path.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Replace a text file."""
    with replacing_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
