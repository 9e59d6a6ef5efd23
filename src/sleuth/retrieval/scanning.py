"""Search of the vectors in a file: the rows with the largest inner products, and exactly how large those are.

One scan of a flat file serves all queries of a batch: as a product of matrices, 64 queries cost three times what one
costs, where faiss by default scans once for each. The last bits of such a product depend on its shape, so the best
rows are scored again, each by itself: a score is the same bits whatever was searched together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Literal, Protocol

import numpy as np

from sleuth.retrieval.vectors import FLAT_INNER_PRODUCT, load_faiss, mapped_rows, open_vectors, vector_settings
from sleuth.types import SleuthError

SPARE_ROWS = 8  # fetched beyond k, to detect ties at rank k
TIE = 1e-5  # difference of two scores below which a scan may order them wrongly; vectors have length 1
MAX_CANDIDATES = 1024  # fetched at most while all tie with the k-th

Device = Literal["cpu", "cuda"]
"""Where vectors are searched."""

Hits = list[tuple[int, float]]
"""(row, score) of a query's candidates, in no particular order; the best k are among them."""


class VectorSearch(Protocol):
    """The vectors of an index."""

    count: int
    width: int
    settings: dict[str, Any]  # see `vector_settings`

    def search(self, queries: np.ndarray, k: int) -> list[Hits]:
        """At least the best k rows (fewer if there are fewer) of each of (n, width) float32 queries."""
        ...


def open_search(path: Path, device: Device = "cpu") -> VectorSearch:
    """The search of a faiss file; on `"cuda"` all visible devices share its rows. Raises SleuthError if it cannot be
    opened, or be searched there."""
    index = open_vectors(path)
    with path.open("rb") as file:
        is_flat = file.read(4) == FLAT_INNER_PRODUCT
    if device == "cuda":
        if not is_flat:
            raise SleuthError(f"{path}: quantised vectors are searched on the CPU; leave --device out")
        from sleuth.retrieval.on_cards import VectorsOnCards, cuda_devices  # loads torch

        rows = mapped_rows(path)
        return FlatSearch(VectorsOnCards(rows, cuda_devices()), rows)
    return FlatSearch(index, mapped_rows(path)) if is_flat else QuantisedSearch(index)


class FlatSearch:
    """Exact search, with one scan for all queries by `index`: faiss' of the file, or `VectorsOnCards`."""

    def __init__(self, index: Any, rows: np.ndarray) -> None:
        self.count, self.width = rows.shape
        self.settings = {"storage": "flat"}
        self._index = index
        self.rows = rows

    def search(self, queries: np.ndarray, k: int) -> list[Hits]:
        """See `VectorSearch`."""
        k = min(k, self.count)
        limit = min(k + SPARE_ROWS, self.count)
        found = self._scan(queries, limit)
        while limit < min(self.count, MAX_CANDIDATES):
            unsure = [at for at, hits in enumerate(found) if _ties_at(k, hits)]
            if not unsure:
                break
            limit = min(4 * limit, self.count)
            for at, hits in zip(unsure, self._scan(queries[unsure], limit), strict=True):
                found[at] = hits
        return found

    def _scan(self, queries: np.ndarray, limit: int) -> list[Hits]:
        with _products_from(1):
            _, best = self._index.search(queries, limit)
        return [self._scored(query, np.sort(rows[rows >= 0])) for query, rows in zip(queries, best, strict=True)]

    def _scored(self, query: np.ndarray, rows: np.ndarray) -> Hits:
        """The scores of a few rows. A sum along a row, unlike a matrix product, has the same bits in any company."""
        scores = (np.asarray(self.rows[rows]) * query).sum(axis=1)
        return list(zip(rows.tolist(), scores.tolist(), strict=True))


class QuantisedSearch:
    """Approximate search, in which each query reads its own share of the lists."""

    def __init__(self, index: Any) -> None:
        self.count, self.width = index.ntotal, index.d
        self.settings = vector_settings(index)
        self._index = index

    def search(self, queries: np.ndarray, k: int) -> list[Hits]:
        """See `VectorSearch`."""
        with _products_from(None):  # products would make the choice of lists depend on the other queries
            scores, rows = self._index.search(queries, min(k + SPARE_ROWS, self.count))
        return [
            [(row, score) for row, score in zip(*hits, strict=True) if row >= 0]
            for hits in zip(rows.tolist(), scores.tolist(), strict=True)
        ]


def _ties_at(k: int, hits: Hits) -> bool:
    scores = sorted((score for _, score in hits), reverse=True)
    return scores[k - 1] - scores[-1] < TIE


_scanning = Lock()


@contextmanager
def _products_from(queries: int | None) -> Iterator[None]:
    """Scans with a product of matrices from so many queries on, None for never. faiss keeps this for the process."""
    variables = load_faiss().cvar
    with _scanning:
        before = variables.distance_compute_blas_threshold
        variables.distance_compute_blas_threshold = queries if queries is not None else 2**31 - 1
        try:
            yield
        finally:
            variables.distance_compute_blas_threshold = before
