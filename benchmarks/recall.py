"""`python -m benchmarks.recall DIR... --questions FILE`: recall and cost of several indexes of one corpus.

A question counts as found if a gold passage is among the first three. The first index is compared with
each of the others, question by question: the difference has a paired 95 % interval. Queries are sent one at a time;
`vector_searches_per_second` excludes the encoder.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from sleuth.data.questions import load_questions
from sleuth.evaluation.intervals import paired_bootstrap, share
from sleuth.retrieval.encoder import Encoder
from sleuth.retrieval.open_index import Index, open_index
from sleuth.retrieval.vectors import open_vectors
from sleuth.types import Task

K = 3
VECTOR_QUERIES = 500


def main() -> None:
    """Print one JSON object a line: each index, then the differences."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall", description=__doc__)
    parser.add_argument("indexes", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--questions", type=Path, required=True)
    options = parser.parse_args()
    tasks = [task for task in load_questions(options.questions) if task.gold_passages]
    found = {}
    for folder in options.indexes:
        index = open_index(folder)
        started = time.perf_counter()
        found[folder] = hits(index, tasks)
        row = {
            "index": str(folder),
            "kind": index.card.kind,
            f"recall@{K}": share(found[folder]).as_json(),
            "queries_per_second": round(len(tasks) / (time.perf_counter() - started), 1),
            "bytes": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
            **vectors_alone(folder, index, [task.question for task in tasks[:VECTOR_QUERIES]]),
        }
        print(json.dumps(row), flush=True)
    first, *others = options.indexes
    for other in others:
        beyond = paired_bootstrap(found[first], found[other])
        print(json.dumps({"index": str(first), "beyond": str(other), "difference": beyond.as_json()}))


def hits(index: Index, tasks: list[Task]) -> list[float]:
    """For each question 1 if a gold passage is among the first K, else 0."""
    passages = [index.find([task.question], K)[0] for task in tasks]
    return [
        float(any(passage.id in task.gold_passages for passage in ranked))
        for task, ranked in zip(tasks, passages, strict=True)
    ]


def vectors_alone(folder: Path, index: Index, questions: list[str]) -> dict[str, Any]:
    """The size of a dense index on disk, and its vector searches per second."""
    if index.card.kind != "dense" or index.card.encoder is None or index.card.vectors is None:
        return {}
    file = folder / index.card.vectors
    queries, vectors = Encoder(index.card.encoder).queries(questions), open_vectors(file)
    vectors.search(queries[:20], K)
    started = time.perf_counter()
    for query in queries:
        vectors.search(query[None], K)
    rate = len(queries) / (time.perf_counter() - started)
    return {"vector_bytes": file.stat().st_size, "vector_searches_per_second": round(rate, 1)}


if __name__ == "__main__":
    main()
