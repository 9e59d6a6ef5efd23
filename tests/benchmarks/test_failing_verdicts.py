"""The benchmark of failing verdicts: its judge is the one that a recipe opens."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.failing_verdicts import ARMS, judged_by
from sleuth.judges.cache import VerdictCache
from sleuth.judges.factory import judge_of
from sleuth.judges.tables import LexicalJudgeRecipe
from sleuth.types import Case


def test_half_of_the_verdicts_of_the_recipes_judge_are_zeros_in_that_arm(tmp_path: Path) -> None:
    cases = [Case(claim=f"Ada Voss was born in {at}.", evidence=f"Ada Voss was born in {at}.") for at in range(100)]
    for arm, zeros in {"every verdict": range(1), "half zero": range(30, 71)}.items():
        with VerdictCache(tmp_path / f"{arm}.sqlite") as cache, judged_by(ARMS[arm], 0, cache):
            verdicts = asyncio.run(judge_of(LexicalJudgeRecipe()).judge.judge(cases))
        assert sum(verdict.score == 0.0 for verdict in verdicts) in zeros
