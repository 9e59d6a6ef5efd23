"""A judge watched by a second one on a share of its cases: the first decides, the second measures their agreement."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from statistics import fmean

from sleuth.judges.cache import NamedJudge, NamedSheetJudge
from sleuth.types import AnySheet, Case, Judge, Pair, Verdict


class Watch:
    """The differences between two judges on the same cases. `watcher` judges a `share` of the batches (the answers of
    one group), chosen by a hash of their text, so that a resumed run watches the same ones. Missing verdicts of either
    are skipped."""

    def __init__(self, watcher: Judge, share: float) -> None:
        self._watcher = watcher
        self._share = share
        self._differences: list[float] = []

    async def observe(self, cases: Sequence[Case], verdicts: asyncio.Future[list[Verdict]]) -> list[Verdict]:
        """Awaits and returns the verdicts on these cases, unchanged; the watcher may judge them concurrently."""
        if not self._is_selected(cases):
            return await verdicts
        decided, watched = await asyncio.gather(verdicts, self._watcher.judge(cases))
        for one, other in zip(decided, watched, strict=True):
            if one.score is not None and other.score is not None:
                self._differences.append(abs(one.score - other.score))
        return decided

    def take(self) -> list[float]:
        """The absolute difference on each compared case since the last call."""
        differences, self._differences = self._differences, []
        return differences

    def _is_selected(self, cases: Sequence[Case]) -> bool:
        text = "\0".join(case.claim for case in cases).encode(errors="replace")
        return bool(cases) and int.from_bytes(hashlib.sha256(text).digest()[:8]) < self._share * 2**64


class WatchedJudge:
    """A watched `Judge`."""

    def __init__(self, judge: NamedJudge, watch: Watch) -> None:
        self.identity = judge.identity
        self._judge = judge
        self._watch = watch

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """The judge's own verdicts."""
        return await self._watch.observe(cases, asyncio.ensure_future(self._judge.judge(cases)))


class WatchedSheetJudge:
    """A `SheetJudge` watched case by case."""

    def __init__(self, judge: NamedSheetJudge, watch: Watch) -> None:
        self.identity = judge.identity
        self._judge = judge
        self._watch = watch

    async def rate(self, sheets: Sequence[AnySheet]) -> list[list[Verdict]]:
        """The judge's own verdicts."""
        cases = [case for sheet in sheets for case in sheet.cases]
        verdicts = iter(await self._watch.observe(cases, asyncio.ensure_future(self._flat(sheets))))
        return [[next(verdicts) for _ in sheet.cases] for sheet in sheets]

    async def _flat(self, sheets: Sequence[AnySheet]) -> list[Verdict]:
        return [verdict for verdicts in await self._judge.rate(sheets) for verdict in verdicts]


def agreement(differences: Sequence[float]) -> float | None:
    """1 - the mean difference: 1 if two judges always agreed, 0 if they always said the opposite; None without any."""
    return 1 - fmean(differences) if differences else None


NOT_CACHED = Verdict(score=None, reason="the verdict is not cached, and no judge may be called")


class SilentJudge:
    """A judge with the `identity` of another that makes no calls: all of its verdicts are missing."""

    def __init__(self, identity: str) -> None:
        self.identity = identity

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """A missing verdict for each case."""
        return [NOT_CACHED] * len(cases)

    async def rate(self, sheets: Sequence[AnySheet]) -> list[list[Verdict]]:
        """Missing verdicts for each sheet."""
        return [[NOT_CACHED] * len(sheet.cases) for sheet in sheets]

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """A missing verdict for each pair."""
        return [NOT_CACHED] * len(pairs)
