"""A pool compared pair by pair: in both orders, each with each or as a tournament, by a judge that knows endings."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
import pytest
from continuations import continued

from benchmarks.tournament import Flipping, ranks, shuffled
from sleuth.think.comparisons import (
    PAIR_CRITERION,
    BothOrders,
    Extremes,
    PairwiseReward,
    Standings,
    candidate,
    find_extremes,
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


@pytest.mark.parametrize("schedule", ["round_robin", "tournament"])
def test_where_nobody_is_better_all_score_the_same_and_of_one_text_nobody_is_asked(schedule: str):
    judge = Compares(lambda first, second: 0.5)
    assert len(set(values(PairwiseReward(judge, schedule=schedule), "a", "bb", "ccc", "dddd"))) == 1
    judge.asked.clear()
    assert values(PairwiseReward(judge, schedule=schedule), "a", "a", "a") == [0.5, 0.5, 0.5]
    assert not judge.asked


def test_a_missing_verdict_counts_for_nobody_and_below_half_there_is_no_score():
    judge = Compares(lambda first, second: None if {first, second} == {"a", "cc"} else longer(first, second))
    found = scores(PairwiseReward(judge), "a", "bbb", "cc")
    assert [(score.value, score.parts["unjudged"]) for score in found] == [(0.0, 0.5), (1.0, 0.0), (0.0, 0.5)]
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


# -- a tournament beside the full round robin, under a judge whose verdicts are flipped now and then -------------------

POOL = 17


class OftenSilent(Flipping):
    """Says nothing of a share of the pairs."""

    def score(self, one: int, other: int) -> float | None:
        silent = random.Random(f"silent {min(one, other)} {max(one, other)}").random() < self.share
        return None if silent else float(one > other)


def extremes(judge: Flipping, pool: list[int], seed: int = 0) -> Extremes:
    return asyncio.run(find_extremes(judge, "", [*map(str, pool)], seed=seed))


@pytest.mark.parametrize("flipped", [0.0, 0.05, 0.15])
def test_best_and_worst_of_17_are_as_good_as_the_full_round_robins_with_a_third_of_its_calls(flipped: float) -> None:
    table = np.array([[*ranks(POOL, flipped, seed)] for seed in range(200)])
    best, worst, full_best, full_worst, compared = table.mean(axis=0)
    assert best <= full_best + 0.5
    assert worst <= full_worst + 0.5
    assert compared <= POOL * (POOL - 1) / 2 / 3


def test_no_pair_is_asked_twice_neither_place_is_given_to_one_side_and_the_same_seed_asks_the_same() -> None:
    firsts = []
    for seed in range(20):
        judge, again = Flipping(0.1, seed), Flipping(0.1, seed)
        found = [extremes(one, shuffled(POOL, seed), seed) for one in (judge, again)]
        assert (found[0], judge.asked) == (found[1], again.asked)
        assert len({frozenset((pair.first, pair.second)) for pair in judge.asked}) == len(judge.asked)
        firsts += [int(pair.first) > int(pair.second) for pair in judge.asked]
    assert 0.42 < np.mean(firsts) < 0.58  # five standard errors of 900 draws


def test_missing_verdicts_are_counted_and_say_nothing() -> None:
    judge, pool = OftenSilent(0.2, 1), shuffled(POOL, 1)
    found = extremes(judge, pool, seed=1)
    assert found.best is not None
    assert found.worst is not None
    assert (pool[found.best] >= POOL - 3, pool[found.worst] <= 2) == (True, True)
    assert found.missing == sum(judge.score(int(pair.first), int(pair.second)) is None for pair in judge.asked) > 0
    found = extremes(OftenSilent(1.0, 1), shuffled(POOL, 1))
    assert (found.best, found.worst, found.missing) == (None, None, found.compared)


def test_ties_are_evidence_of_equal_strength() -> None:
    standings = Standings(3)
    standings.enter(0, 1, 0.5)
    standings.enter(1, 2, 1.0)
    zero, one, two = standings.extremes().strengths
    assert one > zero > two
    assert zero + one + two == pytest.approx(0)
