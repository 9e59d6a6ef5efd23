"""A pool compared pair by pair, each with each, in both orders, by a judge that knows endings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import combinations

import pytest
from continuations import continued

from sleuth.think.comparisons import (
    PAIR_CRITERION,
    BothOrders,
    PairwiseReward,
    candidate,
)
from sleuth.think.suffix_reward import EndingJudge, ends_right
from sleuth.types import Group, Pair, PairJudge, Score, Segment, Verdict

PREFIX = Segment(author="source", tokens=(1, 2), text="Ada was born in")
TASK = continued(PREFIX, Segment(author="source", tokens=(3,), text=" Tarn."), "Tarn")


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


def scores(reward: PairwiseReward, *texts: str) -> list[Score]:
    segments = [Segment(author="policy", tokens=(7,), text=text) for text in texts]
    episodes = tuple(candidate(TASK, at, one, "eos") for at, one in enumerate(segments))
    return asyncio.run(reward(Group(task=TASK, episodes=episodes)))


def values(reward: PairwiseReward, *texts: str) -> list[float | None]:
    return [score.value for score in scores(reward, *texts)]


def test_round_robin_compares_each_with_each_and_pays_the_share_of_wins():
    judge = Compares(longer)
    assert values(PairwiseReward(judge, evidence_of=lambda task: task.reference), "a", "bbb", "cc") == [0.0, 1.0, 0.5]
    assert [(pair.first, pair.second) for pair in judge.asked] == [*combinations(("a", "bbb", "cc"), 2)]
    assert {(pair.question, pair.criterion, pair.evidence) for pair in judge.asked} == {
        (PREFIX.text, PAIR_CRITERION, " Tarn.")
    }


def test_candidates_with_the_same_text_are_compared_once_and_score_alike():
    judge = Compares(longer)
    assert values(PairwiseReward(judge), "a", "bb", "a", "bb") == [0.0, 1.0, 0.0, 1.0]
    assert len(judge.asked) == 1


def test_where_nobody_is_better_all_score_the_same_and_of_one_text_nobody_is_asked():
    judge = Compares(lambda first, second: 0.5)
    assert len(set(values(PairwiseReward(judge), "a", "bb", "ccc", "dddd"))) == 1
    judge.asked.clear()
    assert values(PairwiseReward(judge), "a", "a", "a") == [0.5, 0.5, 0.5]
    assert not judge.asked


def test_a_missing_verdict_counts_for_nobody_and_below_half_there_is_no_score():
    judge = Compares(lambda first, second: None if {first, second} == {"a", "cc"} else longer(first, second))
    found = scores(PairwiseReward(judge), "a", "bbb", "cc")
    assert [(score.value, score.parts["unjudged"]) for score in found] == [(0.0, 0.5), (1.0, 0.0), (0.0, 0.5)]
    judge = Compares(lambda first, second: None if "a" in (first, second) else longer(first, second))
    found = scores(PairwiseReward(judge), "a", "bbb", "cc")
    assert [score.value for score in found] == [None, 1.0, 0.0]
    assert found[0].note == "too few comparisons have a verdict"


# -- orders ------------------------------------------------------------------------------------------------------------


def pair(first: str, second: str, question: str = "Ada was born in", evidence: str = "Tarn") -> Pair:
    return Pair(question=question, first=first, second=second, evidence=evidence)


class Says:
    """These verdicts, whatever is asked."""

    def __init__(self, *verdicts: Verdict) -> None:
        self.verdicts = verdicts

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        assert pairs == [pair("a", "b"), pair("b", "a")]
        return [*self.verdicts]


def both(*verdicts: Verdict) -> Verdict:
    [verdict] = asyncio.run(BothOrders(Says(*verdicts)).compare([pair("a", "b")]))
    return verdict


@pytest.mark.parametrize(
    ("given", "exchanged", "score"),
    [
        (1, 0, 1),
        (0, 1, 0),
        (0.5, 0.5, 0.5),
        (1, 1, 0.5),
        (0, 0, 0.5),
        (1, 0.5, 0.5),
        (0.9, 0.2, 1),
        (None, 0, None),
        (1, None, None),
    ],
)
def test_one_is_better_where_both_orders_say_so_and_else_it_is_a_tie_unless_one_failed(
    given: float | None, exchanged: float | None, score: float | None
) -> None:
    found = both(Verdict(score=given), Verdict(score=exchanged))
    assert found.score == score
    if given == exchanged == 1:
        assert found.reason == "as given: the first is better; exchanged: the second is better"


# -- a judge that knows how texts have to end --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (" Tarn.", True),
        (" the town of Tarn.", True),
        ("tarn", True),
        (" Tarn. Ulm was", True),
        (" Tarn\nUlm", True),
        (" the Langwick Museum.", True),
        (" the Museum.", False),
        (" Tarn or Ulm.", False),
        (" Tarnby.", False),
        (" Ulm. Tarn.", False),
        ("", False),
        (" New Ulm.", False),
    ],
)
def test_an_ending_is_right_where_its_first_sentence_stops_at_a_whole_answer(text: str, right: bool):
    assert ends_right(text, ["Tarn", "Langwick Museum", " . "]) == right


def scores_of(judge: PairJudge, asked: Sequence[Pair]) -> list[float | None]:
    return [verdict.score for verdict in asyncio.run(judge.compare(asked))]


def test_the_one_that_ends_right_is_better_equals_tie_and_without_an_answer_there_is_no_verdict():
    ends = [(" Tarn.", " Ulm."), (" Ulm.", " Tarn."), (" Ulm.", " Rome."), (" Tarn.", " in Tarn.")]
    asked = [pair(*one) for one in ends] + [pair(" Tarn.", " Ulm.", evidence="")]
    assert scores_of(EndingJudge(), asked) == [1.0, 0.0, 0.5, 0.5, None]


MANY = [pair(" Tarn.", " Ulm.", question=f"text {number}") for number in range(4_000)]


def test_a_judge_that_errs_does_so_in_its_share_of_verdicts_and_always_in_the_same_ones():
    judge = EndingJudge(flip=0.15)
    found = scores_of(judge, MANY)
    assert found.count(0.0) / 4_000 == pytest.approx(0.15, abs=0.02)
    assert found.count(1.0) + found.count(0.0) == 4_000
    assert scores_of(judge, MANY) == found
