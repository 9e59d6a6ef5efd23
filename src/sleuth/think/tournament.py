"""Comparisons of pairs: a tournament that finds the best and the worst of a pool with few of them, and pair judges that
correct for the order of the answers."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from sleuth.think.preference_tables import rounds_of
from sleuth.types import Pair, PairJudge, Verdict

PRIOR = 2.0
"""Prior standard deviation of strengths, in units in which the odds of the stronger are exp(difference) to 1 (Bradley
and Terry, Biometrika 39, 1952)."""
NEWTON_STEPS = 8
DRAWS = 256
"""Candidate pairs drawn per round for the best and for the worst; most repeat an answer or an earlier pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extremes:
    """Indices of the best and the worst of a pool, after `compared` pairs, `missing` of them without a verdict. Both
    are None unless more than half of the verdicts exist. `strengths` are the estimates, 0 on average.

    `Extremes(best=3, worst=0, strengths=(-1.1, ...), compared=40, missing=0)`.
    """

    best: int | None
    worst: int | None
    strengths: tuple[float, ...]
    compared: int
    missing: int


async def find_extremes(
    judge: PairJudge, question: str, pool: Sequence[str], *, evidence: str = "", criterion: str = "", seed: int = 0
) -> Extremes:
    """The best and the worst of a pool of K answers to one question, in log2 K rounds of K / 2 comparisons, both
    rounded up (45 for 17 answers, of 136 pairs). A round is judged concurrently; no pair is compared twice.

    The next pairs are drawn by top-two sampling (arXiv:1602.08448): two that may both be the best given the verdicts so
    far, or two that may both be the worst. No answer is out after one defeat, so that occasional errors of the judge
    are outvoted. Missing verdicts are ignored; if half are missing, best and worst are None.
    """
    rng, standings = np.random.default_rng(seed), Standings(len(pool))
    for _ in range(rounds_of(len(pool))):
        paired = standings.next_round(rng)
        pairs = [
            Pair(question=question, first=pool[one], second=pool[other], evidence=evidence, criterion=criterion)
            for one, other in paired
        ]
        for (one, other), verdict in zip(paired, await judge.compare(pairs), strict=True):
            standings.enter(one, other, verdict.score)
    return standings.extremes()


class Standings:
    """The state of a tournament of `size` answers: scores of pairs, and a posterior over strengths, a normal
    distribution around its mode (Laplace's approximation)."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._scores: dict[tuple[int, int], float | None] = {}

    def enter(self, one: int, other: int, score: float | None) -> None:
        """Stores the score of `one` against `other`; None is a missing verdict."""
        self._scores[one, other] = score

    def next_round(self, rng: np.random.Generator) -> list[tuple[int, int]]:
        """At most K / 2 new pairs, each in a random order; the first round includes every answer."""
        met = {_in_order(pair) for pair in self._scores}
        unmet = {pair for pair in combinations(range(self.size), 2) if pair not in met}
        drawn = self._likely_pairs(rng) if met else _first_round(self.size, rng)
        chosen: dict[tuple[int, int], None] = {}
        for pair in drawn:
            if pair in unmet and len(chosen) < (self.size + 1) // 2:
                chosen[pair] = None
        swaps = rng.random(len(chosen)) < 0.5
        return [(b, a) if swap else (a, b) for (a, b), swap in zip(chosen, swaps, strict=True)]

    def extremes(self) -> Extremes:
        """The result so far."""
        known = sum(score is not None for score in self._scores.values())
        strengths, _ = self._strengths()
        enough = 2 * known > len(self._scores)
        return Extremes(
            best=int(strengths.argmax()) if enough else None,
            worst=int(strengths.argmin()) if enough else None,
            strengths=tuple(map(float, strengths)),
            compared=len(self._scores),
            missing=len(self._scores) - known,
        )

    def _likely_pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        """The two best, then the two worst, of two draws of all strengths; then all pairs, the most similar first."""
        mode, root = self._strengths()
        drawn = mode + rng.standard_normal((DRAWS, 2, self.size)) @ root.T  # (DRAWS, 2, K)
        for best, worst in zip(drawn.argmax(axis=2).tolist(), drawn.argmin(axis=2).tolist(), strict=True):
            yield from (_in_order(best), _in_order(worst))
        distance = np.abs(mode[:, None] - mode)
        yield from sorted(combinations(range(self.size), 2), key=lambda pair: float(distance[pair]))

    def _strengths(self) -> tuple[np.ndarray, np.ndarray]:
        """The mode of the strengths (K,) and a Cholesky factor (K, K) of their covariance."""
        known = {pair: score for pair, score in self._scores.items() if score is not None}
        scores = np.array([*known.values()])
        sides = np.zeros((len(known), self.size))  # (pairs, K)
        for row, (one, other) in enumerate(known):
            sides[row, one], sides[row, other] = 1.0, -1.0
        prior = np.eye(self.size) / PRIOR**2
        mode, precision = np.zeros(self.size), prior
        for _ in range(NEWTON_STEPS):
            expected = 1 / (1 + np.exp(-sides @ mode))
            precision = prior + (sides * (expected * (1 - expected))[:, None]).T @ sides
            mode = mode + np.linalg.solve(precision, sides.T @ (scores - expected) - prior @ mode)
        return mode, np.linalg.cholesky(np.linalg.inv(precision))


def _first_round(size: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    order = rng.permutation(size).tolist()
    return [_in_order((one, order[(at + 1) % size])) for at, one in enumerate(order) if at % 2 == 0]


def _in_order(pair: Sequence[int]) -> tuple[int, int]:
    return min(pair), max(pair)


TIE = 0.5


class BothOrders:
    """A `PairJudge` that asks another in both orders. One answer is better if both orders say so (arXiv:2306.05685);
    anything else is a tie, whose reason says whether the orders disagreed. If one order has no verdict, the pair has
    none."""

    def __init__(self, judge: PairJudge) -> None:
        self._judge = judge

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """A verdict of 1, 0.5 or 0 for each pair in its given order; two calls each."""
        verdicts = await self._judge.compare([order for pair in pairs for order in (pair, pair.swapped)])
        return [in_both_orders(*verdicts[at : at + 2]) for at in range(0, len(verdicts), 2)]


def in_both_orders(given: Verdict, swapped: Verdict) -> Verdict:
    """The verdict on a pair from its verdict as given and the one on the swapped pair."""
    if given.score is None or swapped.score is None:
        verdict, order = (given, "as given") if given.score is None else (swapped, "exchanged")
        return Verdict(score=None, reason=f"{order}: {verdict.reason}", invalid=verdict.invalid)
    one, other = _side(given.score), _side(1 - swapped.score)
    if one == other:
        return Verdict(score=one, reason=given.reason, evidence=given.evidence)
    words = {1.0: "the first is better", 0.0: "the second is better", TIE: "a tie"}
    return Verdict(score=TIE, reason=f"as given: {words[one]}; exchanged: {words[other]}")


def _side(score: float) -> float:
    return TIE if score == TIE else float(score > TIE)


class OneOrder:
    """A `PairJudge` that asks another once, in an order chosen by a hash of the pair: half the calls of `BothOrders`,
    and a position bias favours no answer on average."""

    def __init__(self, judge: PairJudge) -> None:
        self._judge = judge

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """A verdict for each pair in its given order."""
        swaps = [bool(zlib.crc32(repr(pair).encode(errors="replace")) & 1) for pair in pairs]
        orders = [pair.swapped if swap else pair for pair, swap in zip(pairs, swaps, strict=True)]
        verdicts = await self._judge.compare(orders)
        return [_unswapped(verdict) if swap else verdict for verdict, swap in zip(verdicts, swaps, strict=True)]


def _unswapped(verdict: Verdict) -> Verdict:
    return verdict if verdict.score is None else replace(verdict, score=1 - verdict.score)
