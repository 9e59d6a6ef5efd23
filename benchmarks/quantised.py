"""`python -m benchmarks.quantised FOLDER --out FILE`: what vectors cost by storage, of 1,000,000 made-up ones.

Vectors of 768 numbers lie around 10,000 centres in 64 directions (so do sentences: their vectors fill few of their
directions), with a little noise in all. A query is a row moved by half of the spread around a centre. Each storage
answers the same queries on one thread, one by one and `--together` at once, as merged queries are; recall is the share
of the exact first three. Times are of the processor, memory is the peak of what is not mapped from a file. All of it is
measured of the first quarter of the vectors and of all, so that rates of the one can be held against the other. With
--encoder and --corpus passages and their first eight words, as queries, are encoded too, and rows are read and written.
FOLDER keeps the vectors and the index files.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory import field_bytes, give_back_freed
from sleuth.retrieval.corpus import PassageFileWriter, read_corpus
from sleuth.retrieval.costs import Storage, lists_for
from sleuth.retrieval.quantising import add_rows, empty_index, trained_index
from sleuth.retrieval.vectors import FlatWriter, VectorSearch, load_faiss, mapped_rows, open_search

WIDTH, DIRECTIONS, CENTRES = 768, 64, 10_000
SPREAD, MOVED, NOISE = 0.5, 0.25, 0.02
BLOCK, K = 20_000, 3
PART = 4  # the first of so many parts of the vectors is measured by itself
LOOK_EVERY = 0.02  # seconds between looks at the memory
DRAWN = 10_000  # rows that codes are trained on, at least
ENCODED, READ = 96, 20_000  # passages


def main() -> None:
    """Prints one JSON object a measurement, and writes all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantised", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--storages", nargs="+", choices=["ivf-sq8", "ivf-pq"], default=["ivf-sq8", "ivf-pq"])
    parser.add_argument("--queries", type=int, default=256)
    parser.add_argument("--alone", type=int, default=64, help="of these so many one by one (64)")
    parser.add_argument("--together", type=int, default=128, help="queries of one search at most (128)")
    parser.add_argument("--drawn", action="store_true", help="centroids are rows that are drawn: seconds, not minutes")
    parser.add_argument("--encoder", help="a sentence encoder's folder")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--out", type=Path, help="JSON")
    options = parser.parse_args()
    load_faiss().omp_set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    world, files = World(options.vectors), [options.folder / "part.faiss", options.folder / "flat.faiss"]
    if not files[1].exists():
        world.write(files[1])
    queries, rows = world.queries(options.queries), list[dict[str, Any]]()

    def report(row: dict[str, Any]) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=2) + "\n")

    if options.encoder:
        report(text_times(options.encoder, options.corpus, options.folder / "text"))
    write_rows(mapped_rows(files[1])[: options.vectors // PART], files[0])
    best = list[list[set[int]]]()
    for file in files:
        search = open_search(file)
        best.append(rows_found(search, queries, options.together))
        report(measured("flat", file, search, queries, options.alone, options.together, best[-1], best[-1]))
    storage: Storage
    for storage in options.storages:
        for built, target in quantised(files[1], options.folder, storage, drawn=options.drawn):
            search, exact = open_search(target), best[target.name.startswith("all")]
            found = rows_found(search, queries, options.together)
            report(measured(storage, target, search, queries, options.alone, options.together, exact, found) | built)


def quantised(flat: Path, folder: Path, storage: Storage, *, drawn: bool) -> Iterator[tuple[dict[str, float], Path]]:
    """What building took, and the file: of the first part of the rows, with the centroids of all, and of all."""
    rows, taken = mapped_rows(flat), dict[str, float]()
    with timed(taken, "drawn" if drawn else "train"):
        index = drawn_index(rows, storage) if drawn else trained_index(rows, storage)
    part = len(rows) // PART
    for name, some in (("part", rows[:part]), ("all", rows[part:])):
        with timed(taken, "add"):
            add_rows(index, some)
        target = folder / f"{name}-{storage}.faiss"
        with timed(taken, "write"):
            load_faiss().write_index(index, str(target))
        yield dict(taken), target


def drawn_index(rows: np.ndarray, storage: Storage) -> Any:
    """An empty index whose centroids are rows: it costs as much to fill and to search as a trained one."""
    index = empty_index(WIDTH, lists_for(len(rows)), storage)
    drawn = np.sort(np.random.default_rng(2).choice(len(rows), max(index.nlist, DRAWN), replace=False))
    index.quantizer.add(rows[drawn[:: len(drawn) // index.nlist][: index.nlist]])
    index.train(rows[drawn])  # of the codes alone
    return index


@contextmanager
def timed(taken: dict[str, float], name: str) -> Iterator[None]:
    """Adds the processor's seconds to `taken`, and keeps the peak of memory that is not of a file, over that before."""
    give_back_freed()
    before = taken.setdefault("memory_before", field_bytes("RssAnon"))
    peak, done = [0], threading.Event()

    def look() -> None:
        while not done.wait(LOOK_EVERY):
            peak[0] = max(peak[0], field_bytes("RssAnon") - int(before))

    watch, started = threading.Thread(target=look), time.process_time()
    watch.start()
    yield
    taken[f"{name}_cpu_s"] = round(taken.get(f"{name}_cpu_s", 0.0) + time.process_time() - started, 2)
    done.set()
    watch.join()
    taken["build_memory"] = max(taken.get("build_memory", 0), peak[0])


def text_times(encoder: str, corpus: Path, target: Path) -> dict[str, Any]:
    """Processor seconds of encoding a passage and a query, and of reading and writing the text of a passage."""
    from sleuth.retrieval.encoder import Encoder, encoder_card

    opened = Encoder(encoder_card(encoder, query_prefix="query: ", passage_prefix="passage: "))
    passages = list(islice(read_corpus(corpus), READ))
    some = passages[:: len(passages) // ENCODED][:ENCODED]
    asked = [" ".join(passage.text.split()[:8]) for passage in some]
    opened.queries(asked[:2])  # not timed

    def write() -> None:
        writer = PassageFileWriter(target.with_suffix(".jsonl"), target.with_suffix(".offsets"))
        for _start in range(0, READ, BLOCK):
            writer.append(list(islice(again, BLOCK)))
        writer.close()

    again = read_corpus(corpus)
    return {
        "encoder": f"{opened.card.width} numbers",
        "words": round(float(np.mean([len(passage.text.split()) for passage in some])), 1),
        "passage_cpu_s": seconds_of(lambda: opened.passages(some)) / len(some),
        "query_cpu_s": seconds_of(lambda: opened.queries(asked)) / len(asked),
        "text_cpu_s": seconds_of(write) / len(passages),
    }


def seconds_of(work: Callable[[], object]) -> float:
    """The processor's seconds of a call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def write_rows(rows: np.ndarray, path: Path) -> None:
    """Writes rows as a flat faiss file."""
    writer = FlatWriter(path, rows.shape[1])
    for start in range(0, len(rows), BLOCK):
        writer.append(rows[start : start + BLOCK])
    writer.close()


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


def measured(
    storage: str,
    path: Path,
    search: VectorSearch,
    queries: np.ndarray,
    alone: int,
    together: int,
    best: list[set[int]],
    found: list[set[int]],
) -> dict[str, Any]:
    """Bytes, recall, and the rate and times of queries by one and together, all of the processor."""
    seconds = [seconds_of(lambda query=query: search.search(query[None], K)) for query in queries[:alone]]
    worked = seconds_of(lambda: rows_found(search, queries, together))
    return {
        "storage": storage,
        "vectors": search.count,
        "bytes": path.stat().st_size,
        "recall_at_3": round(float(np.mean([len(a & b) / K for a, b in zip(best, found, strict=True)])), 4),
        "alone_cpu_s": round(float(np.mean(seconds)), 5),
        "alone_p99_cpu_s": round(float(np.quantile(seconds, 0.99)), 5),
        "together": min(together, len(queries)),
        "together_cpu_s": round(worked / len(queries), 5),
    }


if __name__ == "__main__":
    main()
