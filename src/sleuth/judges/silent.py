"""A judge that is not asked: what is known of it stands in the cache before it."""

from __future__ import annotations

from collections.abc import Sequence

from sleuth.types import Case, Pair, Sheet, Verdict

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
