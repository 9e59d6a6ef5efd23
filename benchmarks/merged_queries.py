"""`python -m benchmarks.merged_queries FILE`: a flat index under episodes that search at moments of their own.

256 episodes search twice each, at moments drawn from 20 seconds, the second time not before their first answer. The
index is FILE, 1,000,000 made-up vectors of 768 numbers around 1,000 centres (written first if it is missing; memory-
mapped). `apart` searches as versions up to 0.3 did: each round of the event loop is a batch of its own, and faiss
scans once for each query. `merged` is `QueryBatcher` over `VectorSearch`. Queries are encoded beforehand. Both run in
one process, one after the other, for a minute at most; a scan is a pass over the whole file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

import numpy as np

from sleuth.retrieval.dense import QUERY_BATCH
from sleuth.retrieval.query_batcher import QueryBatcher
from sleuth.retrieval.vectors import FlatWriter, VectorSearch, mapped_rows, open_vectors
from sleuth.types import Passage

EPISODES, SEARCHES, SECONDS, K = 256, 2, 20.0, 3
LIMIT = 60.0  # seconds after which a side is stopped; it counts by what it answered
WIDTH, CENTRES, NOISE, BLOCK = 768, 1000, 0.7, 20_000
OLD_BATCH = 64

Find = Callable[[np.ndarray], Sequence[Sequence[tuple[int, float]]]]


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.merged_queries", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    if not options.file.exists():
        write_vectors(options.file, options.rows)
    index, rows = open_vectors(options.file), mapped_rows(options.file)
    queries = drawn(rows, EPISODES * SEARCHES)
    flat = VectorSearch(index, rows)
    scans = {"apart": 0, "merged": 0}

    def apart(vectors: np.ndarray) -> Sequence[Sequence[tuple[int, float]]]:
        scans["apart"] += len(vectors)
        scores, found = index.search(vectors, K + 8)
        return [sorted(zip(*hits, strict=True), key=lambda hit: -hit[1]) for hits in zip(found, scores, strict=True)]

    def merged(vectors: np.ndarray) -> Sequence[Sequence[tuple[int, float]]]:
        scans["merged"] += 1
        return [sorted(hits, key=lambda hit: (-hit[1], hit[0])) for hits in flat.search(vectors, K)]

    rows[:: max(1, 4096 // WIDTH)].sum()  # reads the file once, for both
    figures = {
        "merged": play(merged, queries, QUERY_BATCH, 1),
        "apart": play(apart, queries, OLD_BATCH, EPISODES * SEARCHES),
    }
    firsts = [figure.pop("first") for figure in figures.values()]
    same = np.mean([firsts[0][at] == firsts[1][at] for at in firsts[0].keys() & firsts[1].keys()])
    shown = {name: {**figure, "scans": scans[name]} for name, figure in figures.items()}
    ratios = {
        "rows": len(rows),
        "scans_per_answer": {name: round(scans[name] / figure["answered"], 4) for name, figure in figures.items()},
        "throughput_ratio": round(figures["merged"]["per_second"] / figures["apart"]["per_second"], 2),
        "same_first_passage": float(same),
    }
    print(json.dumps(shown | ratios))


def write_vectors(file: Path, count: int) -> None:
    """Unit vectors around centres, in a flat faiss file."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CENTRES, WIDTH), dtype=np.float32)
    writer = FlatWriter(file, WIDTH)
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        made = centres[rng.integers(0, CENTRES, size)]
        made += NOISE * rng.standard_normal((size, WIDTH), dtype=np.float32)
        writer.append(made / np.linalg.norm(made, axis=1, keepdims=True))
    writer.close()


def drawn(rows: np.ndarray, count: int) -> np.ndarray:
    """Queries near rows of the index."""
    rng = np.random.default_rng(1)
    near = np.asarray(rows[np.sort(rng.choice(len(rows), count, replace=False))])
    near = near + 0.5 / np.sqrt(WIDTH) * rng.standard_normal(near.shape, dtype=np.float32)
    return (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)


def play(find: Find, queries: np.ndarray, batch_size: int, at_once: int) -> dict:
    """Searches per second until the last answer, the wait for one in seconds, and the first row of each query."""
    lock, seconds, first = Lock(), list[float](), dict[int, int]()

    def locked(texts: Sequence[str]) -> list[list[Passage]]:
        with lock:  # as an index that searches one batch at a time
            found = find(queries[[int(text) for text in texts]])
        return [[Passage(id=str(row), title="", text="", score=score) for row, score in hits[:K]] for hits in found]

    batcher = QueryBatcher(lambda texts, k: asyncio.to_thread(locked, texts), batch_size, at_once)
    moments = np.sort(np.random.default_rng(2).uniform(0, SECONDS, (EPISODES, SEARCHES)), axis=1)

    async def episode(number: int, began: float) -> None:
        for turn, moment in enumerate(moments[number]):
            await asyncio.sleep(max(0.0, began + moment - time.perf_counter()))
            asked, at = time.perf_counter(), number * SEARCHES + turn
            [passages] = await batcher.search([str(at)], K)
            seconds.append(time.perf_counter() - asked)
            first[at] = int(passages[0].id)

    async def everybody() -> float:
        began = time.perf_counter()
        tasks = [asyncio.ensure_future(episode(number, began)) for number in range(EPISODES)]
        _, pending = await asyncio.wait(tasks, timeout=LIMIT)
        for task in pending:
            task.cancel()
        return time.perf_counter() - began

    worked = time.process_time()
    took = asyncio.run(everybody())
    worked = time.process_time() - worked
    p50, p99 = np.quantile(seconds, [0.5, 0.99])
    return {
        "answered": len(seconds),
        "per_second": round(len(seconds) / took, 2),
        "processor_ms_per_answer": round(worked / len(seconds) * 1000, 1),
        "seconds": round(took, 1),
        "wait_p50": round(float(p50), 2),
        "wait_p99": round(float(p99), 2),
        "first": first,
    }


if __name__ == "__main__":
    main()
