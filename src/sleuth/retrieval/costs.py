"""What a search in an index costs, by how it keeps passages and by rates that were measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Storage = Literal["flat", "ivf-sq8", "ivf-pq"]
"""Exact with 4 bytes per number; or, in inverted lists of which a share is searched, one byte per number (`ivf-sq8`) or
about a quarter of a byte (`ivf-pq`, product quantisation)."""

MAX_LISTS, ROWS_PER_LIST = 4096, 64  # of an IVF index; centroids are trained on `ROWS_PER_LIST` rows per list
NUMBERS_PER_PART = 4  # of product quantisation: one byte stands for so many numbers
WIDTH, TOGETHER = 768, 128  # of the measurements: numbers of a vector, and queries of a merged scan


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Seconds of one thread for a million passages of `WIDTH` numbers: `once` a scan and for each `query` in it; and
    for each `call`, of any size."""

    call: float = 0.0
    once: float = 0.0
    query: float


RATES = {
    "flat": Rates(once=0.264, query=0.0124),
    "ivf-sq8": Rates(call=0.0017, query=0.005),
    "ivf-pq": Rates(call=0.0014, query=0.0047),
    "bm25": Rates(query=1 / 500),
}
"""By the storage of an index card, or `bm25`. `python -m benchmarks.quantised` measures them."""


def search_seconds(storage: str, passages: int, *, width: int = WIDTH, together: int = 1) -> float:
    """Thread-seconds of one query, without encoding it, where `together` queries share a scan. Raises KeyError for
    the storage of another tool."""
    rates, lists = RATES[storage], lists_for(passages) if storage.startswith("ivf") else 0
    centroids = search_seconds("flat", lists, width=width) if lists else 0.0  # each query looks at all
    millions = passages / 1e6 * (1 if storage == "bm25" else width / WIDTH)
    return centroids + rates.call / together + millions * (rates.once / together + rates.query)


def lists_for(passages: int) -> int:
    """The lists of a quantised index, a power of two."""
    return min(MAX_LISTS, 1 << max(0, (passages // ROWS_PER_LIST).bit_length() - 1))
