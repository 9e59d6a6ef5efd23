"""A judge with another one looking over its shoulder: the first decides, the second only shows when they part."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from statistics import fmean

from sleuth.judges.cache import NamedJudge, NamedSheetJudge
from sleuth.types import Case, Judge, Pair, Sheet, Verdict


class Watch:
    """What both judges said of the same cases. `watcher` sees the `share` of all that is asked together (the answers of
    one group), chosen by its words, so that a run which is resumed has the same watched. Where either said nothing,
    nothing is compared."""

    def __init__(self, watcher: Judge, share: float) -> None:
        self._watcher = watcher
        self._share = share
        self._apart: list[float] = []

    async def look(self, cases: Sequence[Case], verdicts: asyncio.Future[list[Verdict]]) -> list[Verdict]:
        """The verdicts that are under way on these cases, as they are; meanwhile the other judge may look too."""
        if not self._sees(cases):
            return await verdicts
        said, seen = await asyncio.gather(verdicts, self._watcher.judge(cases))
        for one, other in zip(said, seen, strict=True):
            if one.score is not None and other.score is not None:
                self._apart.append(abs(one.score - other.score))
        return said

    def take(self) -> list[float]:
        """How far apart the two were on each case since this was last called."""
        apart, self._apart = self._apart, []
        return apart

    def _sees(self, cases: Sequence[Case]) -> bool:
        words = "\0".join(case.claim for case in cases).encode(errors="replace")
        return bool(cases) and int.from_bytes(hashlib.sha256(words).digest()[:8]) < self._share * 2**64


class WatchedJudge:
    """A `Judge` that is watched."""

    def __init__(self, judge: NamedJudge, watch: Watch) -> None:
        self.identity = judge.identity
        self._judge = judge
        self._watch = watch

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """What the judge says."""
        return await self._watch.look(cases, asyncio.ensure_future(self._judge.judge(cases)))


class WatchedSheetJudge:
    """A `SheetJudge` that is watched, criterion by criterion."""

    def __init__(self, judge: NamedSheetJudge, watch: Watch) -> None:
        self.identity = judge.identity
        self._judge = judge
        self._watch = watch

    async def rate(self, sheets: Sequence[Sheet]) -> list[list[Verdict]]:
        """What the judge says."""
        cases = [case for sheet in sheets for case in sheet.cases]
        verdicts = iter(await self._watch.look(cases, asyncio.ensure_future(self._flat(sheets))))
        return [[next(verdicts) for _ in sheet.criteria] for sheet in sheets]

    async def _flat(self, sheets: Sequence[Sheet]) -> list[Verdict]:
        return [verdict for of_sheet in await self._judge.rate(sheets) for verdict in of_sheet]


def agreement(apart: Sequence[float]) -> float | None:
    """1 where two judges said the same of every case, 0 where the opposite of each; None where nothing is compared."""
    return 1 - fmean(apart) if apart else None


NOT_ASKED = Verdict(score=None, reason="no verdict was kept, and nobody is asked")


class SilentJudge:
    """Stands for the judge of an `identity` where no call may be made."""

    def __init__(self, identity: str) -> None:
        self.identity = identity

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """Nothing of any case."""
        return [NOT_ASKED] * len(cases)

    async def rate(self, sheets: Sequence[Sheet]) -> list[list[Verdict]]:
        """Nothing of any sheet."""
        return [[NOT_ASKED] * len(sheet.criteria) for sheet in sheets]

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Nothing of any pair."""
        return [NOT_ASKED] * len(pairs)
