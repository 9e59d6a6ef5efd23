"""A pool compared pair by pair, in both orders: who wins how often, and what a missing verdict does to that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import combinations

import pytest

from sleuth.think.comparisons import PAIR_CRITERION, BothOrders, PairwiseReward, candidate
from sleuth.types import Continuation, Group, Pair, Score, Segment, Task, Verdict

PREFIX = Segment(author="source", tokens=(1, 2), text="Ada was born in")
TASK = Task(
    id="t",
    question=PREFIX.text,
    golden_answers=("Tarn",),
    reference=" Tarn.",
    continuation=Continuation(document="t", prefix=PREFIX, suffix=Segment(author="source", tokens=(3,), text=" Tarn.")),
)


class Compares:
    """Prefers what `better(first, second)` says; None is no verdict. `asked` keeps all pairs."""

    def __init__(self, better: Callable[[str, str], float | None]) -> None:
        self.better = better
        self.asked: list[Pair] = []

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        self.asked += pairs
        return [Verdict(score=self.better(pair.first, pair.second)) for pair in pairs]


def longer(first: str, second: str) -> float:
    return 0.5 if len(first) == len(second) else float(len(first) > len(second))


def pool(*texts: str) -> Group:
    segments = [Segment(author="policy", tokens=(7,), text=text) for text in texts]
    return Group(task=TASK, episodes=tuple(candidate(TASK, at, one, "eos") for at, one in enumerate(segments)))


def scores(reward: PairwiseReward, *texts: str) -> list[Score]:
    return asyncio.run(reward(pool(*texts)))


def values(reward: PairwiseReward, *texts: str) -> list[float | None]:
    return [score.value for score in scores(reward, *texts)]


def test_round_robin_compares_each_with_each_and_pays_the_share_of_wins():
    judge = Compares(longer)
    assert values(PairwiseReward(judge), "a", "bbb", "cc") == [0.0, 1.0, 0.5]
    assert [(pair.first, pair.second) for pair in judge.asked] == [*combinations(("a", "bbb", "cc"), 2)]
    assert {(pair.question, pair.criterion) for pair in judge.asked} == {(PREFIX.text, PAIR_CRITERION)}


def test_candidates_with_the_same_text_are_compared_once_and_score_alike():
    judge = Compares(longer)
    assert values(PairwiseReward(judge), "a", "bb", "a", "bb") == [0.0, 1.0, 0.0, 1.0]
    assert len(judge.asked) == 1


def test_a_pool_of_one_text_is_a_tie_and_nobody_is_asked():
    judge = Compares(longer)
    assert values(PairwiseReward(judge), "a", "a", "a") == [0.5, 0.5, 0.5]
    assert not judge.asked
    assert values(PairwiseReward(judge, schedule="tournament"), "a", "a") == [0.5, 0.5]


def test_a_missing_verdict_counts_for_nobody():
    judge = Compares(lambda first, second: None if {first, second} == {"a", "cc"} else longer(first, second))
    found = scores(PairwiseReward(judge), "a", "bbb", "cc")
    assert [score.value for score in found] == [0.0, 1.0, 0.0]
    assert [score.parts["unjudged"] for score in found] == [0.5, 0.0, 0.5]


def test_a_candidate_with_fewer_than_half_of_its_verdicts_has_no_score_and_is_never_guessed():
    judge = Compares(lambda first, second: None if "a" in (first, second) else longer(first, second))
    found = scores(PairwiseReward(judge), "a", "bbb", "cc")
    assert [score.value for score in found] == [None, 1.0, 0.0]
    assert found[0].note == "too few comparisons have a verdict"


def test_a_tournament_asks_less_and_finds_the_same_ends():
    texts = ["x" * length for length in (4, 9, 1, 7, 3, 8, 2, 6, 5)]
    judge = Compares(longer)
    found = values(PairwiseReward(judge, schedule="tournament"), *texts)
    known = [value for value in found if value is not None]
    assert len(known) == 9
    assert (known.index(max(known)), known.index(min(known))) == (1, 2)
    assert all(0 < value < 1 for value in known)
    assert len(judge.asked) == 4 * 5 < 9 * 8 / 2


def test_a_tournament_of_which_half_is_missing_scores_nobody():
    judge = Compares(lambda first, second: None)
    found = scores(PairwiseReward(judge, schedule="tournament"), "a", "bb", "ccc")
    assert [(score.value, score.parts["unjudged"]) for score in found] == [(None, 1.0)] * 3


@pytest.mark.parametrize("schedule", ["round_robin", "tournament"])
def test_where_nobody_is_better_all_score_the_same(schedule: str):
    judge = Compares(lambda first, second: 0.5)
    assert len(set(values(PairwiseReward(judge, schedule=schedule), "a", "bb", "ccc", "dddd"))) == 1


def test_the_judge_is_shown_what_the_reward_is_told_to_show():
    judge = Compares(longer)
    scores(PairwiseReward(judge, evidence_of=lambda task: task.reference), "a", "bb")
    assert [pair.evidence for pair in judge.asked] == [" Tarn."]


PAIR = Pair(question="Where?", first="In Tarn.", second="In Ulm.")


class Says:
    """A score for each order: (as given, exchanged)."""

    def __init__(self, *scores: float | None) -> None:
        self.scores = scores
        self.asked: list[Pair] = []

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        self.asked += pairs
        return [Verdict(score=score, reason=f"said {score}") for score in self.scores]


def both(*scores: float | None) -> Verdict:
    judge = Says(*scores)
    [verdict] = asyncio.run(BothOrders(judge).compare([PAIR]))
    assert judge.asked == [PAIR, PAIR.swapped]
    return verdict


@pytest.mark.parametrize(
    ("given", "exchanged", "score"),
    [(1, 0, 1), (0, 1, 0), (0.5, 0.5, 0.5), (1, 1, 0.5), (0, 0, 0.5), (1, 0.5, 0.5), (0.5, 1, 0.5), (0.9, 0.2, 1)],
)
def test_one_is_better_where_both_orders_say_so_and_else_it_is_a_tie(
    given: float, exchanged: float, score: float
) -> None:
    assert both(given, exchanged).score == score


def test_orders_that_disagree_are_told() -> None:
    assert both(1, 1).reason == "as given: the first is better; exchanged: the second is better"


@pytest.mark.parametrize("scores", [(None, 0.0), (1.0, None), (None, None)])
def test_a_failure_in_one_order_is_a_missing_verdict_and_no_tie(scores: Sequence[float | None]) -> None:
    assert both(*scores).score is None


def test_an_invalid_verdict_stays_invalid() -> None:
    class Garbled:
        async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
            return [Verdict(score=1.0), Verdict(score=None, invalid=True, reason="prose")]

    [verdict] = asyncio.run(BothOrders(Garbled()).compare([PAIR]))
    assert (verdict.score, verdict.invalid, verdict.reason) == (None, True, "exchanged: prose")
