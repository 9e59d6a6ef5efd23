"""Sums and differences in the layout of MATH-500: a reasoning set without a download, for tiny runs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

LARGEST = 20
"""The largest number in a problem; no answer is negative."""


def arithmetic_rows(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """`count` problems, such as `{"unique_id": "arithmetic-0", "problem": "What is 3 + 14?", "answer": "17",
    "subject": "addition"}`; some may be equal."""
    rng = random.Random(f"arithmetic {seed}")
    for number in range(count):
        less, more = sorted(rng.choices(range(LARGEST + 1), k=2))
        adds = rng.random() < 0.5
        yield {
            "unique_id": f"arithmetic-{number}",
            "problem": f"What is {less} + {more}?" if adds else f"What is {more} - {less}?",
            "answer": str(less + more if adds else more - less),
            "subject": "addition" if adds else "subtraction",
        }
