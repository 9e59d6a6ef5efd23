"""Atomic writes: to a partial file, synced to the disk, then renamed into place."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".partial"
"""Suffix of files and folders that are still being written. Nothing reads them."""
DAMAGED = ".damaged"
"""Suffix of files and folders that could not be used any more and were kept. Nothing reads them."""


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Yields a path to write to. It replaces `path` if the block succeeds, and is removed if it fails."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        yield partial
        _sync(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync(path.parent)


@contextmanager
def replacing_folder(path: Path, *, synced: bool = True) -> Iterator[Path]:
    """Yields an empty folder. It replaces `path` if the block succeeds, and is removed if it fails. Without `synced`, a
    machine that crashes may lose it; other processes see it whole or not at all."""
    partial = path.with_name(path.name + PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        share_by_umask(partial)
        for written in [*partial.rglob("*"), partial] if synced else ():
            _sync(written)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    replaced = path.with_name(path.name + ".replaced" + PARTIAL)
    if path.exists():  # a folder cannot be renamed onto a non-empty one
        shutil.rmtree(replaced, ignore_errors=True)
        path.rename(replaced)
    partial.rename(path)
    if synced:
        _sync(path.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def share_by_umask(folder: Path) -> None:
    """Lets those who may read a new folder read the files in it: safetensors writes for its user alone."""
    shared = folder.stat().st_mode & 0o666
    for file in folder.rglob("*"):
        if file.is_file() and (mode := stat.S_IMODE(file.stat().st_mode)) | shared != mode:
            file.chmod(mode | shared)


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically."""
    with replacing_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
