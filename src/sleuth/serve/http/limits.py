"""What clients may take of a server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may take, and how many may come at once; the defaults are the retriever's."""

    body_bytes: int = 40 * 2**20
    """A little more than the most queries at their longest."""
    upload_seconds: float = 10.0
    """For a body to arrive."""
    seconds: float = 60.0
    """For an answer."""
    waiting: int = 1024
    """Requests that wait to be answered."""


def conversation_limits(*, seconds: float = 120.0, waiting: int = 256) -> Limits:
    """Of `sleuth serve`: a body holds a question, or a prompt of some hundred thousand tokens."""
    return Limits(body_bytes=2**20, seconds=seconds, waiting=waiting)
