"""`python -m benchmarks.quantised FOLDER`: quantised vectors beside flat ones, of 1,000,000 made-up vectors.

Vectors of 768 numbers lie around 10,000 centres in 64 directions (so do sentences: their vectors fill few of their
directions), with a little noise in all. A query is a row moved by half of the spread around a centre. Each storage
answers the same queries on one thread, one by one and `--together` at once, as merged queries are; recall is the share
of the exact first three. Times are of the processor. FOLDER keeps the vectors, so that a second call only measures.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np

from sleuth.retrieval.quantising import Storage, quantise
from sleuth.retrieval.vectors import FlatWriter, VectorSearch, load_faiss, open_search

WIDTH, DIRECTIONS, CENTRES = 768, 64, 10_000
SPREAD, MOVED, NOISE = 0.5, 0.25, 0.02
BLOCK, K = 20_000, 3


def main() -> None:
    """Prints one JSON object a storage."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantised", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--storages", nargs="+", choices=["ivf-sq8", "ivf-pq"], default=["ivf-sq8"])
    parser.add_argument("--queries", type=int, default=256)
    parser.add_argument("--together", type=int, default=128, help="queries of one search at most (128)")
    options = parser.parse_args()
    load_faiss().omp_set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    world, flat = World(options.vectors), options.folder / "flat.faiss"
    if not flat.exists():
        world.write(flat)
    queries = world.queries(options.queries)
    exact = open_search(flat)
    best = rows_found(exact, queries, options.together)
    report("flat", flat, 0.0, exact, queries, options.together, 1.0)
    storage: Storage
    for storage in options.storages:
        target, started = options.folder / f"{storage}.faiss", time.process_time()
        if not target.exists():
            quantise(flat, target, storage)
        seconds, search = time.process_time() - started, open_search(target)
        found = rows_found(search, queries, options.together)
        recall = float(np.mean([len(a & b) / K for a, b in zip(best, found, strict=True)]))
        report(storage, target, seconds, search, queries, options.together, recall)


class World:
    """Where vectors lie. The same seed gives the same rows."""

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(0)
        self.count = count
        self._centres = rng.standard_normal((CENTRES, DIRECTIONS), dtype=np.float32)
        self._directions = rng.standard_normal((DIRECTIONS, WIDTH), dtype=np.float32) / DIRECTIONS**0.5

    def write(self, path: Path) -> None:
        """Writes all rows as a flat faiss file."""
        writer = FlatWriter(path.with_suffix(".partial"), WIDTH)
        for start in range(0, self.count, BLOCK):
            points, rng = self._block(start)
            writer.append(self._vectors(points, rng))
        writer.close()
        os.replace(path.with_suffix(".partial"), path)

    def queries(self, count: int) -> np.ndarray:
        """(count, WIDTH): rows of the first block, moved."""
        points, rng = self._block(0)
        moved = points[:count] + MOVED * rng.standard_normal((count, DIRECTIONS), dtype=np.float32)
        return self._vectors(moved, rng)

    def _block(self, start: int) -> tuple[np.ndarray, np.random.Generator]:
        rng = np.random.default_rng([1, start])
        size = min(BLOCK, self.count - start)
        spread = SPREAD * rng.standard_normal((size, DIRECTIONS), dtype=np.float32)
        return self._centres[rng.integers(CENTRES, size=size)] + spread, rng

    def _vectors(self, points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        rows = points @ self._directions
        rows += NOISE * rng.standard_normal(rows.shape, dtype=np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def rows_found(search: VectorSearch, queries: np.ndarray, together: int) -> list[set[int]]:
    """The best `K` rows of each query."""
    found = [
        hits for start in range(0, len(queries), together) for hits in search.search(queries[start:][:together], K)
    ]
    return [{row for row, _ in sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:K]} for hits in found]


def report(
    storage: str, path: Path, built: float, search: VectorSearch, queries: np.ndarray, together: int, recall: float
) -> None:
    """Prints bytes, building, recall, and the rate and times of queries by one and together, all of the processor."""
    seconds = []
    for query in queries:
        started = time.process_time()
        search.search(query[None], K)
        seconds.append(time.process_time() - started)
    worked = time.process_time()
    rows_found(search, queries, together)
    worked = time.process_time() - worked
    p50, p99 = np.quantile(seconds, [0.5, 0.99])
    figures = {
        "storage": storage,
        "bytes": path.stat().st_size,
        "built_cpu_s": round(built, 1),
        "recall_at_3": round(recall, 4),
        "per_second": round(len(seconds) / sum(seconds), 2),
        "p50_ms": round(p50 * 1000, 2),
        "p99_ms": round(p99 * 1000, 2),
        "together_per_second": round(len(queries) / worked, 2),
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
