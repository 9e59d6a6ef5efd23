"""`python -m benchmarks.tournament`: best and worst of a pool by tournament and by full round robin.

Pools are shuffled; a verdict on a pair is flipped with some probability, always the same for the same pair. The round
robin ranks by wins, with ties broken at random. A rank is the number of texts of the pool that are truly better (or
worse) than the chosen one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from sleuth.think.comparisons import find_extremes
from sleuth.types import Pair, Verdict


class Flipping:
    """Prefers the larger number, except for a share of the pairs, for which it always gives the opposite."""

    def __init__(self, share: float, seed: int) -> None:
        self.share, self.seed = share, seed
        self.asked: list[Pair] = []

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        self.asked += pairs
        return [Verdict(score=self.score(int(pair.first), int(pair.second))) for pair in pairs]

    def score(self, one: int, other: int) -> float | None:
        flipped = random.Random(f"{self.seed} {min(one, other)} {max(one, other)}").random() < self.share
        return float((one > other) != flipped)


def main() -> None:
    """Print one JSON object per row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tournament", description=__doc__)
    parser.add_argument("--size", type=int, nargs="+", default=[17])
    parser.add_argument("--pools", type=int, default=200)
    options = parser.parse_args()
    for size in options.size:
        for share in (0.0, 0.05, 0.15, 0.25):
            table = np.array([[*ranks(size, share, seed)] for seed in range(options.pools)])
            names = ("best", "worst", "best_of_all_pairs", "worst_of_all_pairs", "compared")
            means = dict(zip(names, table.mean(axis=0).round(2).tolist(), strict=True))
            print(json.dumps({"size": size, "flipped": share, "pairs": size * (size - 1) // 2, **means}))


def shuffled(size: int, seed: int) -> list[int]:
    """A pool: numbers from 0, the worst, in any order."""
    return random.Random(seed).sample(range(size), size)


def ranks(size: int, share: float, seed: int) -> Iterator[int]:
    """True ranks of the best and worst by tournament and by round robin; the number of pairs in the tournament."""
    judge, pool = Flipping(share, seed), shuffled(size, seed)
    found = asyncio.run(find_extremes(judge, "", [*map(str, pool)], seed=seed))
    assert found.best is not None
    assert found.worst is not None
    wins = np.random.default_rng(seed).random(size) / 2
    for one, other in combinations(range(size), 2):
        score = judge.score(pool[one], pool[other])
        assert score is not None
        wins[one], wins[other] = wins[one] + score, wins[other] + 1 - score
    yield from (size - 1 - pool[found.best], pool[found.worst])
    yield from (size - 1 - pool[int(wins.argmax())], pool[int(wins.argmin())])
    yield found.compared


if __name__ == "__main__":
    main()
