"""What the exit status of a verb says; 0 is done."""

from __future__ import annotations

FAILED = 1
"""The run failed."""
WRONG_INPUT = 2
"""What it was given is wrong."""
INTERRUPTED = 130
"""Somebody stopped it."""
