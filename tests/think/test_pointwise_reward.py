"""A dimension by itself: what the judge is asked, and what it sees."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from test_pairwise_reward import TASK, pool

from sleuth.answers.factory import TotalReward
from sleuth.think.preference_rewards import CRITERIA, PointwiseReward
from sleuth.types import Case, Verdict


class Rates:
    """Scores by the claim; a claim that is not there has no verdict."""

    def __init__(self, **scores: float) -> None:
        self.scores = scores
        self.asked: list[Case] = []

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        self.asked += cases
        return [Verdict(score=self.scores.get(case.claim), reason="out") for case in cases]


def test_each_text_is_judged_once_by_the_criterion_of_its_dimension():
    judge = Rates(a=1.0, b=0.5)
    found = asyncio.run(PointwiseReward(judge, "safety")(pool("a", "b", "a")))
    assert [(score.value, score.parts) for score in found] == [
        (1.0, {"safety": 1.0}),
        (0.5, {"safety": 0.5}),
        (1.0, {"safety": 1.0}),
    ]
    assert [(case.question, case.claim, case.criterion) for case in judge.asked] == [
        (TASK.question, "a", CRITERIA["safety"]),
        (TASK.question, "b", CRITERIA["safety"]),
    ]


def test_only_of_factuality_does_the_judge_see_how_the_text_really_goes_on():
    for dimension in CRITERIA:
        judge = Rates(a=1.0)
        asyncio.run(PointwiseReward(judge, dimension)(pool("a")))
        assert ("« Tarn.»" in judge.asked[0].criterion) == (dimension == "factuality")
        assert "{reference}" not in judge.asked[0].criterion


def test_dimensions_sum_and_one_without_a_verdict_leaves_the_sum_missing():
    safe, good = PointwiseReward(Rates(a=1.0, b=0.5), "safety"), PointwiseReward(Rates(a=0.5), "quality")
    found = asyncio.run(TotalReward([safe, good], [1.0, 2.0])(pool("a", "b")))
    assert [score.value for score in found] == [2.0, None]
    assert found[1].note == "the judge gave no verdict: out"
