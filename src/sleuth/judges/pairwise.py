"""In which order a judge sees the two of a pair: a verdict that depends on which stands first is none."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

from sleuth.types import Pair, PairJudge, Verdict

TIE = 0.5


class BothOrders:
    """A `PairJudge` that asks another one twice, with the answers exchanged. One is better where both orders say so
    (arXiv:2306.05685); anything else is a tie, and the reason says whether the orders disagreed. Where one order has no
    verdict, the pair has none."""

    def __init__(self, judge: PairJudge) -> None:
        self._judge = judge

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """A verdict of 1, 0.5 or 0 for each pair, as it is given; two calls each."""
        asked = [order for pair in pairs for order in (pair, pair.swapped)]
        verdicts = await self._judge.compare(asked)
        return [in_both_orders(*verdicts[at : at + 2]) for at in range(0, len(verdicts), 2)]


def in_both_orders(given: Verdict, swapped: Verdict) -> Verdict:
    """What two verdicts on a pair, the second with its answers exchanged, say of the pair as it was given."""
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
    """A `PairJudge` that asks another one once, in an order that is drawn by the pair itself: half the calls, and a
    judge who prefers what stands first favours nobody in particular."""

    def __init__(self, judge: PairJudge) -> None:
        self._judge = judge

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """A verdict for each pair, as it is given."""
        exchanged = [bool(zlib.crc32(repr(pair).encode(errors="replace")) & 1) for pair in pairs]
        asked = [pair.swapped if other else pair for pair, other in zip(pairs, exchanged, strict=True)]
        verdicts = await self._judge.compare(asked)
        return [_returned(verdict) if other else verdict for verdict, other in zip(verdicts, exchanged, strict=True)]


def _returned(verdict: Verdict) -> Verdict:
    return verdict if verdict.score is None else replace(verdict, score=1 - verdict.score)
