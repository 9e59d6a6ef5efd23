from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sleuth.evaluation.intervals import wilson
from sleuth.evaluation.paired import by_question, difference, paired_records, question_means, question_value


def records(ems: Sequence[float | None]) -> list[dict[str, Any]]:
    return [{"id": f"q{n}", "em": em, "searches": 1, "kind": "one_hop"} for n, em in enumerate(ems)]


def test_the_difference_is_taken_question_by_question() -> None:
    base, trained = records([0.0, 0.0, 1.0, 1.0]), records([1.0, 0.0, 1.0, None])
    found = difference("em", list(reversed(trained)), base)
    assert found is not None
    assert found.measured.n == 3  # the missing verdict is left out
    assert found.measured.value == pytest.approx(1 / 3)  # (1 - 0 + 0 - 0 + 1 - 1) / 3
    assert difference("em", records([None]), records([1.0])) is None


def test_samples_of_one_question_are_paired_in_order_and_count_once() -> None:
    base, trained = records([0.0, 1.0]), records([1.0, 1.0])
    for arm in (base, trained):
        arm[1]["id"] = "q0"
    pairs = paired_records(base, trained)
    assert [tuple(one["em"] for one in pair) for pair in pairs] == [(0.0, 1.0), (1.0, 1.0)]
    found = difference("em", trained, base)
    assert found is not None
    assert (found.measured.value, found.measured.n) == (0.5, 1)


def test_records_of_several_runs_are_beside_each_other_where_all_have_them() -> None:
    three = [records([0.0, 1.0]), records([1.0]), records([1.0, 0.0])]
    assert [[one["em"] for one in row] for row in paired_records(*three)] == [[0.0, 1.0, 1.0]]


def test_a_question_counts_by_the_mean_of_what_its_samples_gave() -> None:
    run = by_question([*records([1.0, None]), *records([0.0, None])])
    assert question_means("em", ["q0", "q1"], [run]) == [[0.5, None]]


def test_citing_is_compared_where_both_arms_have_a_verdict() -> None:
    base = [{"id": "a", "cites": 0.0, "cited_gold": 0.0}, {"id": "b", "cites": 1.0}, {"id": "c", "cited_gold": 1.0}]
    trained = [
        {"id": "a", "cites": 1.0, "cited_holds_answer": 1.0, "cited_gold": 1.0},
        {"id": "b", "cites": 1.0},
        {"id": "c", "cites": 1.0},
    ]
    found = difference("cites", trained, base)
    assert found is not None
    assert (found.measured.value, found.measured.n) == (0.5, 2)
    gold = difference("cited_gold", trained, base)
    assert gold is not None
    assert (gold.measured.value, gold.measured.n) == (1.0, 1)
    assert difference("cited_holds_answer", trained, base) is None


def test_a_question_counts_only_where_it_has_a_part() -> None:
    passages = [{"id": "7", "title": "", "text": ""}]
    record = {"id": "q", "kind": "two_hop", "em": 1.0, "searches": 2, "gold_passages": ["7"], "stop": "answered"}
    record["actions"] = [{"kind": "search", "text": "", "passages": passages}]
    assert question_value("em_one_hop", record) is None
    assert question_value("em_two_hop", record) == 1.0
    assert question_value("searches_mean", record) == question_value("searches_two_hop", record) == 2
    assert question_value("query_recall", record) == question_value("evidence_shown", record) == 1.0
    assert question_value("query_recall", record | {"actions": []}) == 0.0
    assert question_value("query_recall", record | {"gold_passages": []}) is None
    for figure in ("searched", "searches_mean", "query_recall", "evidence_shown", "response_tokens_mean"):
        assert question_value(figure, record | {"stop": "failed"}) is None


def test_response_tokens_are_the_policys_and_unknown_where_the_file_does_not_tell() -> None:
    segments = [{"author": "policy", "text": "", "tokens": 3}, {"author": "env", "text": "", "tokens": 9}]
    assert question_value("response_tokens_mean", {"segments": segments}) == 3
    assert question_value("response_tokens_mean", {"segments": [{"author": "policy", "text": ""}]}) is None


def test_missing_verdicts_are_counted_and_never_zeros() -> None:
    run = records([1.0, None])
    assert [question_value("missing", record) for record in run] == [0.0, 1.0]
    assert wilson(1, 1).n == len([1 for record in run if question_value("em", record) is not None])


def test_a_compatible_score_is_compared_question_by_question_too() -> None:
    assert question_value("score_verl", {"em": 0.0, "score_verl": 0.25}) == 0.25
    assert question_value("score_verl", {"em": 0.0}) is None
