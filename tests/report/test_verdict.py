from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sleuth.evaluation.figures import figure
from sleuth.evaluation.paired import figure_rows
from sleuth.report.figures import failure_arms, failure_rows, outcome_table, whiskers
from sleuth.report.page import overlap, verdict


def evaluation(ems: Sequence[float | None], **more: Any) -> dict[str, Any]:
    present = [em for em in ems if em is not None]
    value = sum(present) / len(present)
    records = [
        {
            "id": f"q{n}",
            "question": f"question {n}",
            "golden_answers": ["x"],
            "em": em,
            "searches": 1,
            "kind": "one_hop",
        }
        for n, em in enumerate(ems)
    ]
    em = {"value": value, "low": value - 0.01, "high": value + 0.01, "n": len(present)}
    return {"em": em, "temperature": 0.0, "records": records} | more


def test_the_verdict_says_rose_only_if_the_paired_interval_leaves_zero_out() -> None:
    weak, strong = evaluation([0.0] * 40), evaluation([1.0] * 30 + [0.0] * 10)
    assert verdict({"base": weak, "trained": strong}) == (
        "Greedy exact match on 40 questions rose from 0.000 [-0.010, 0.010] to 0.750 [0.740, 0.760]."
    )
    assert " fell from 0.750 " in verdict({"base": strong, "trained": weak})
    mixed = evaluation([0.0] * 10 + [1.0] * 30)
    assert " did not clearly move: from 0.750 " in verdict({"base": strong, "trained": mixed})


def test_a_run_that_compares_no_answers_is_led_by_its_score() -> None:
    def scored(value: float, **more: Any) -> dict[str, Any]:
        found = evaluation([0.0] * 40)
        records = [{**record, "verdict": "score", "score": value, "score_f/turns": 1.0} for record in found["records"]]
        one = {"value": value, "low": value, "high": value, "n": 40}
        led = {"headline": ["score", "score_f/turns"], "reward": "f", "score": one, "score_f/turns": one}
        return {**found, **led, "records": records, "outcomes": {"turns": 40}} | more

    runs = {"base": scored(0.25), "trained": scored(0.5)}
    assert verdict(runs) == "Greedy score on 40 questions rose from 0.250 [0.250, 0.250] to 0.500 [0.500, 0.500]."
    assert [(row.key, figure(row.key).label) for row in figure_rows(runs)] == [
        ("score", "Score"),
        ("score_f/turns", "turns of f"),
        ("em", "Exact match"),
    ]
    assert outcome_table(runs)[0] == ("turns", [(40, 1.0), (40, 1.0)])
    assert failure_rows(failure_arms(runs)) == []
    assert verdict({"base": scored(0.25)}) == "Not measured yet: no score in eval/trained.json."
    other = {"base": scored(0.25), "trained": scored(0.5, reward="g")}
    assert verdict(other).startswith("Greedy turns of f on 40 questions")
    assert figure_rows(other)[0].difference is None


def test_every_measured_figure_has_a_row_even_if_one_arm_lacks_it() -> None:
    odd = {"value": 3.0, "low": 2.0, "high": 7.0, "n": 5}
    unmeasured = {"value": None, "low": None, "high": None, "n": 0}
    rows = figure_rows({"base": evaluation([1.0], query_recall=unmeasured), "trained": evaluation([1.0], thoughts=odd)})
    assert [row.key for row in rows] == ["em", "thoughts"]
    assert rows[1].measured["base"] is None
    assert rows[1].difference is None
    assert whiskers(rows[1].measured)[1].high == 8


def test_a_run_that_probed_thoughts_is_told_by_its_certificates() -> None:
    probed = {"certificate": {"passes": False, "claim": "its own thoughts are not shown to beat an empty one"}}
    told = "thoughts: its own thoughts are not shown to beat an empty one."
    assert verdict({"thoughts": probed}) == told
    assert verdict({"thoughts": probed, "base": evaluation([1.0])}).startswith("Not measured yet")


def test_outcomes_keep_their_zeros_and_name_why_a_verdict_is_missing() -> None:
    arms = {
        "base": {"outcomes": {"correct": 1, "wrong": 3}},
        "trained": {"outcomes": {"correct": 3, "no retriever": 1}},
    }
    assert outcome_table(arms) == [
        ("correct", [(1, 0.25), (3, 0.75)]),
        ("wrong", [(3, 0.75), (0, 0.0)]),
        ("no_answer", [(0, 0.0), (0, 0.0)]),
        ("malformed", [(0, 0.0), (0, 0.0)]),
        ("no retriever", [(0, 0.0), (1, 0.25)]),
    ]
    assert outcome_table({}) == []


def test_questions_that_were_trained_on_are_called_out() -> None:
    arms = {"base": evaluation([1.0, 0.0]), "trained": evaluation([1.0, 0.0])}
    assert overlap(arms, {"question 1", "other"}).startswith("Careful: 1 of these 2 questions")
    assert overlap(arms, {"other"}).startswith("None of these 2 questions")
    assert overlap(arms, set()) == ""
