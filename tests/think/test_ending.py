"""A judge that knows how texts have to end, and one that errs on purpose."""

from __future__ import annotations

import asyncio

import pytest

from sleuth.think.comparisons import BothOrders, OneOrder
from sleuth.think.suffix_reward import EndingJudge, ends_right
from sleuth.types import Pair


def pair(first: str, second: str, question: str = "Ada was born in", evidence: str = "Tarn") -> Pair:
    return Pair(question=question, first=first, second=second, evidence=evidence)


def score(judge: EndingJudge | BothOrders | OneOrder, asked: Pair) -> float | None:
    [verdict] = asyncio.run(judge.compare([asked]))
    return verdict.score


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (" Tarn.", True),
        (" the town of Tarn.", True),
        ("tarn", True),
        (" Tarn. Ulm was", True),
        (" Tarn\nUlm", True),
        (" Ulm.", False),
        (" Tarn or Ulm.", False),
        (" Tarnby.", False),
        (" Ulm. Tarn.", False),
        ("", False),
        (" New Ulm.", False),
    ],
)
def test_an_ending_is_right_where_its_first_sentence_stops_at_the_answer(text: str, right: bool):
    assert ends_right(text, ["Tarn"]) == right


def test_an_answer_of_several_words_is_wanted_whole():
    assert ends_right(" the Langwick Museum.", ["Langwick Museum", "the museum"])
    assert not ends_right(" the Museum.", ["Langwick Museum"])
    assert not ends_right(" anything", [" . "])


def test_the_one_that_ends_right_is_better_and_equals_tie():
    judge = EndingJudge()
    assert score(judge, pair(" Tarn.", " Ulm.")) == 1.0
    assert score(judge, pair(" Ulm.", " Tarn.")) == 0.0
    assert score(judge, pair(" Ulm.", " Rome.")) == 0.5
    assert score(judge, pair(" Tarn.", " in Tarn.")) == 0.5


def test_a_text_that_says_nothing_of_its_ending_gets_no_verdict():
    assert score(EndingJudge(), pair(" Tarn.", " Ulm.", evidence="")) is None


def test_a_judge_that_errs_does_so_in_its_share_of_verdicts_and_always_in_the_same_ones():
    judge = EndingJudge(flip=0.15)
    asked = [pair(" Tarn.", " Ulm.", question=f"text {number}") for number in range(4_000)]
    scores = [verdict.score for verdict in asyncio.run(judge.compare(asked))]
    assert scores.count(0.0) / 4_000 == pytest.approx(0.15, abs=0.02)
    assert scores.count(1.0) + scores.count(0.0) == 4_000
    assert [verdict.score for verdict in asyncio.run(judge.compare(asked))] == scores


def test_in_both_orders_few_errors_are_left_and_the_others_are_ties():
    judge = BothOrders(EndingJudge(flip=0.15))
    asked = [pair(" Tarn.", " Ulm.", question=f"text {number}") for number in range(4_000)]
    scores = [verdict.score for verdict in asyncio.run(judge.compare(asked))]
    assert scores.count(0.0) / 4_000 == pytest.approx(0.15**2, abs=0.01)
    assert scores.count(0.5) / 4_000 == pytest.approx(2 * 0.15 * 0.85, abs=0.03)


def test_asked_in_one_order_a_judge_of_places_favours_about_half():
    class First:
        async def compare(self, pairs):
            from sleuth.types import Verdict

            return [Verdict(score=1.0) for _ in pairs]

    asked = [pair(" Tarn.", " Ulm.", question=f"text {number}") for number in range(400)]
    scores = [verdict.score for verdict in asyncio.run(OneOrder(First()).compare(asked))]
    assert 150 < scores.count(1.0) < 250
    assert set(scores) == {0.0, 1.0}
