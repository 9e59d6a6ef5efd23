"""Rewrites of suffixes, as a teacher made them: rows of `id` and `rewrite`."""

from __future__ import annotations

from pathlib import Path

from sleuth.data.rows import read_rows, text_of
from sleuth.types import SleuthError


def read_rewrites(path: Path) -> dict[str, str]:
    """By the id of the text whose suffix was rewritten. Raises SleuthError with file:line for a malformed row, and for
    an id that an earlier row has."""
    found: dict[str, str] = {}
    for where, row in read_rows(path):
        name = text_of(row, "id", where)
        if name in found:
            raise SleuthError(f"{where}: id {name!r} has a rewrite in an earlier row; one text has one")
        found[name] = text_of(row, "rewrite", where)
    return found
