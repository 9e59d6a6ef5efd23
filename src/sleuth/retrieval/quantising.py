"""Quantised vectors: a quarter or a sixteenth of the bytes, in lists of which a query reads a share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sleuth.retrieval.costs import NUMBERS_PER_PART, ROWS_PER_LIST, Storage, lists_for
from sleuth.retrieval.vectors import VectorSearch, load_faiss, mapped_rows, open_search
from sleuth.types import SleuthError

BLOCK_ROWS = 65_536  # quantised per call
PQ_CENTROIDS = 256  # of each part of a vector, and the rows that training needs at least
COMPARED, DEPTH = 200, 10  # rows whose neighbours are compared with the exact ones, and how many of each


def quantise(flat: Path, target: Path, storage: Storage = "ivf-sq8") -> None:
    """Writes an IVF index to `target` from a flat one of `FlatWriter`. Raises SleuthError if there are too few rows.

    Takes up to twice the memory of the result or of the rows that it trains on. The index is searched from disk.
    """
    rows = mapped_rows(flat)
    index = trained_index(rows, storage)
    add_rows(index, rows)
    load_faiss().write_index(index, str(target))


def trained_index(rows: np.ndarray, storage: Storage) -> Any:
    """An empty IVF index for (count, width) rows, with centroids of a sample of them."""
    count, width = rows.shape
    if storage == "ivf-pq" and count < PQ_CENTROIDS:
        raise SleuthError(
            f"--vectors ivf-pq needs {PQ_CENTROIDS} passages to train on, and there are {count}; use ivf-sq8 or flat"
        )
    lists = lists_for(count)
    index = empty_index(width, lists, storage)
    sample = np.random.default_rng(0).choice(count, size=min(count, lists * ROWS_PER_LIST), replace=False)
    index.train(rows[np.sort(sample)])
    return index


def add_rows(index: Any, rows: np.ndarray) -> None:
    """Quantises (n, width) rows into an index, a block at a time."""
    for start in range(0, len(rows), BLOCK_ROWS):
        index.add(np.ascontiguousarray(rows[start : start + BLOCK_ROWS]))


def recall_against_flat(flat: Path, quantised: Path) -> dict[str, float]:
    """The share of the exact `DEPTH` nearest passages of a passage that the quantised file finds too: `{"value": 0.97,
    "low": 0.96, "high": 0.98, "n": 200}`, the mean over `COMPARED` passages drawn with a fixed seed and its normal 95 %
    interval. The passage itself does not count."""
    exact, small, rows = open_search(flat), open_search(quantised), mapped_rows(flat)
    drawn = np.sort(np.random.default_rng(1).choice(len(rows), min(COMPARED, len(rows)), replace=False))
    queries = np.ascontiguousarray(rows[drawn])
    found = [_neighbours(search, queries, drawn) for search in (exact, small)]
    shares = [len(a & b) / len(a) for a, b in zip(*found, strict=True) if a] or [1.0]  # a single passage
    mean, half = float(np.mean(shares)), 1.96 * float(np.std(shares)) / len(shares) ** 0.5
    return {"value": mean, "low": max(0.0, mean - half), "high": min(1.0, mean + half), "n": len(shares)}


def _neighbours(search: VectorSearch, queries: np.ndarray, own: np.ndarray) -> list[set[int]]:
    """The best `DEPTH` rows of each query besides its own."""
    best = [sorted(hits, key=lambda hit: (-hit[1], hit[0])) for hits in search.search(queries, DEPTH + 1)]
    others = [[row for row, _ in hits if row != itself] for hits, itself in zip(best, own.tolist(), strict=True)]
    return [set(rows[:DEPTH]) for rows in others]


def empty_index(width: int, lists: int, storage: Storage) -> Any:
    """An IVF index that is not trained."""
    faiss = load_faiss()
    lists_by, metric = faiss.IndexFlatIP(width), faiss.METRIC_INNER_PRODUCT
    if storage == "ivf-sq8":
        return faiss.IndexIVFScalarQuantizer(lists_by, width, lists, faiss.ScalarQuantizer.QT_8bit, metric)
    parts = next(parts for parts in range(max(1, width // NUMBERS_PER_PART), 0, -1) if width % parts == 0)
    return faiss.IndexIVFPQ(lists_by, width, lists, parts, PQ_CENTROIDS.bit_length() - 1, metric)
