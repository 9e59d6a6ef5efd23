"""A set's figures and the mean over sets, from records as an evaluation file has them."""

from __future__ import annotations

from typing import Any

import pytest

from sleuth.evaluation.evaluate import mean_over_sets, record_values, set_figures
from sleuth.evaluation.intervals import UNMEASURED, bootstrap_mean, wilson


def record(question: str, answer: str | None, em: float | None, **more: Any) -> dict[str, Any]:
    """An answered question whose golden answer is "Ada Voss"; it was told in two turns of 4 and 6 tokens."""
    note = "retriever failed" if em is None else "correct" if em else "wrong"
    turns = [{"author": "policy", "tokens": 4}, {"author": "env", "tokens": 90}, {"author": "policy", "tokens": 6}]
    plain = {"id": question, "golden_answers": ["Ada Voss"], "answer": answer, "em": em, "note": note}
    plain |= {"searches": 1, "stop": "failed" if em is None else "answered", "segments": turns} | more
    return plain | record_values(plain)


def test_an_answer_is_compared_with_the_golden_ones() -> None:
    assert record_values(record("a", "Ada Voss", 1.0)) == {"sub_match": 1.0, "f1": 1.0}
    assert record_values(record("a", "Ada Voss of Tarn", 0.0)) == {
        "sub_match": 1.0,
        "f1": pytest.approx(2 / 3),
    }
    assert record_values(record("a", "Ada", 0.0)) == {"sub_match": 0.0, "f1": pytest.approx(2 / 3)}


@pytest.mark.parametrize("note", ["no_answer", "malformed"])
def test_what_the_strict_reader_did_not_take_for_an_answer_matches_nothing(note: str) -> None:
    values = record("a", "Ada Voss", 0.0, note=note)
    assert (values["sub_match"], values["f1"]) == (0.0, 0.0)


def test_a_failed_retriever_leaves_every_figure_missing_and_never_zero() -> None:
    lost = record("a", None, None)
    assert (lost["sub_match"], lost["f1"]) == (None, None)
    assert set(set_figures([lost]).values()) == {UNMEASURED}


def test_shares_have_wilsons_interval_and_means_that_of_a_bootstrap() -> None:
    records = [record("a", "Ada Voss", 1.0, searches=3), record("b", "Ada", 0.0), record("c", None, None)]
    figures = set_figures(records)
    assert (figures["em"], figures["sub_match"]) == (wilson(1, 2), wilson(1, 2))
    assert figures["f1"] == bootstrap_mean([1.0, 2 / 3])
    assert figures["searches_mean"] == bootstrap_mean([3.0, 1.0])
    assert figures["response_tokens_mean"] == bootstrap_mean([10.0, 10.0])


def test_the_score_of_another_scorer_is_a_figure_where_records_have_it() -> None:
    records = [record("a", "Ada Voss", 1.0, score_slime=1.0), record("b", "Ada", 0.0, score_slime=1.0)]
    assert set_figures([*records, record("c", None, None)])["score_slime"] == bootstrap_mean([1.0, 1.0])
    assert mean_over_sets([records, records[:1]])["score_slime"].value == 1.0


def test_samples_of_one_question_are_one_draw() -> None:
    once = [record("a", "Ada Voss", 1.0), record("b", "Ada", 0.0)]
    assert set_figures(once * 3) == set_figures(once)
    assert mean_over_sets([once * 3, once]) == mean_over_sets([once, once])


def test_the_mean_over_sets_counts_a_small_set_as_much_as_a_large_one() -> None:
    right, wrong = record("a", "Ada Voss", 1.0), record("b", "Rome", 0.0)
    large = [right | {"id": str(at)} for at in range(30)]
    figures = mean_over_sets([large, [wrong]])
    assert (figures["em"].value, figures["em"].n) == (0.5, 31)
    assert figures["f1"].value == 0.5


def test_a_mean_over_sets_of_which_one_has_no_verdict_is_none() -> None:
    figures = mean_over_sets([[record("a", "Ada Voss", 1.0)], [record("b", None, None)]])
    assert set(figures.values()) == {UNMEASURED}
