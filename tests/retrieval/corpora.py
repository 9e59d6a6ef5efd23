from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

PASSAGES = {
    "17": '"Ada Voss"\nAda Voss was born in Tarn and wrote novels.',
    "4": '"Tarn"\nTarn is a town by the sea.',
    "9": '"Ariel Ramírez"\nA composer from Argentina.',
    "12": '"To Be or Not to Be"\nA comedy film of 1942.',
    "13": '"Novel"\nA long story in prose.',
}

WriteCorpus = Callable[..., Path]
"""`write_corpus(passages, name)`: both may be left out."""


def towns(numbers: range, prefix: str = "") -> dict[str, str]:
    """Passages of which many share words."""
    return {f"{prefix}{n}": f'"Town {n}"\nTown {n % 97} lies near {n % 31}.' for n in numbers}


class KilledError(Exception):
    """Ends a build where a test says so."""
