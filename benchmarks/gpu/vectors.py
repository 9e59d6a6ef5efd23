"""The vectors of a flat index on a card, beside a product of doubles on the CPU."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.gpu.card import timed
from benchmarks.gpu.checks import Check
from sleuth.retrieval.vectors import VectorsOnCards

WIDTH, QUERIES, BEST = 768, 128, 11
SCORE_ERROR = 1e-5  # of float32; TF32 would be a hundred times as far off


def vectors(check: Check) -> None:
    """The best rows of random vectors of length 1, and what a merged scan takes."""
    draw = np.random.default_rng(0)
    rows = _of_length_1(draw.standard_normal((check.scale.vectors, WIDTH), dtype=np.float32))
    queries = _of_length_1(draw.standard_normal((QUERIES, WIDTH), dtype=np.float32))
    search = VectorsOnCards(rows, [check.device])
    scores, _ = search.search(queries, BEST)
    exact = torch.from_numpy(queries).double() @ torch.from_numpy(rows).double().T
    error = (torch.from_numpy(scores) - exact.topk(BEST, dim=1).values).abs().max()
    check.found(f"scores of the best {BEST}", float(error), at_most=SCORE_ERROR)
    seconds = timed(check.device, lambda: search.search(queries, BEST))
    check.found(f"{QUERIES} queries of {len(rows):,} vectors", QUERIES / seconds, "queries/s")


def _of_length_1(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
