"""Paired comparisons of evaluation files, and evaluations in a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from sleuth.evaluation.paired import (
    by_question,
    evaluation_line,
    headline,
    mean_difference,
    paired_records,
    question_means,
)
from sleuth.report.run_files import RunFiles
from sleuth.report.summary import run_headline


def records(ems: Sequence[float | None]) -> list[dict[str, Any]]:
    return [{"id": f"q{n}", "em": em, "searches": 1, "kind": "one_hop"} for n, em in enumerate(ems)]


def change(key: str, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> tuple[float | None, int] | None:
    found = mean_difference(key, ours, theirs)
    return found and (found.value, found.n)


def test_the_difference_is_taken_question_by_question() -> None:
    base, trained = records([0.0, 0.0, 1.0, 1.0]), records([1.0, 0.0, 1.0, None])
    assert change("em", trained[::-1], base) == pytest.approx((1 / 3, 3))  # the missing verdict is left out
    assert change("em", records([None]), records([1.0])) is None


def test_samples_of_one_question_are_paired_in_order_and_count_once() -> None:
    base, trained = records([0.0, 1.0]), records([1.0, 1.0])
    for arm in (base, trained):
        arm[1]["id"] = "q0"
    pairs = paired_records(base, trained)
    assert [tuple(one["em"] for one in pair) for pair in pairs] == [(0.0, 1.0), (1.0, 1.0)]
    assert change("em", trained, base) == (0.5, 1)


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
    assert change("cites", trained, base) == (0.5, 2)
    assert change("cited_gold", trained, base) == (1.0, 1)
    assert change("cited_holds_answer", trained, base) is None


def evaluation(*right: float | None, key: str = "em") -> dict[str, Any]:
    records = [{"id": f"q{at}", key: value} for at, value in enumerate(right)]
    known = [value for value in right if value is not None]
    value = sum(known) / len(known) if known else None
    return {key: {"value": value, "low": 0.25, "high": 0.75, "n": len(known)}, "records": records}


def test_a_line_has_the_figures_of_an_evaluation_with_their_intervals() -> None:
    found = evaluation(1.0, 0.0) | {"searched": {"value": 1.0, "low": 0.34, "high": 1.0, "n": 2}, "model": "m"}
    assert evaluation_line("base", found) == "base: exact match 0.500 [0.25, 0.75], searched 1.000 [0.34, 1.00], n 2"
    other = {"thought_nll": {"value": 1.5, "low": 1.0, "high": 2.0, "n": 9}}
    assert evaluation_line("probe", other) == "probe: thought_nll 1.500 [1.00, 2.00], n 9"
    assert evaluation_line("none", evaluation(None)) == "none: exact match missing, n 0"
    assert evaluation_line("empty", {"records": []}) == "empty: nothing measured"


def test_a_headline_is_the_paired_difference_of_two_evaluations() -> None:
    runs = {"base": evaluation(0.0, 0.0, 1.0, 0.0), "trained": evaluation(1.0, 1.0, 1.0, 1.0)}
    line = headline(runs, "base", "trained")
    assert line is not None
    assert line.startswith("exact match 0.250 -> 1.000 (+0.750 [")
    same = headline({"a": runs["base"], "b": runs["base"]}, "a", "b")
    assert same == "exact match 0.250 -> 0.250 (+0.000 [0.00, 0.00])"


def scored(*values: float, reward: str = "f", **parts: float) -> dict[str, Any]:
    """An evaluation led by the score of its stage, with a function `f` and parts of it."""
    figures = {"score": fmean(values), "score_f": fmean(values)} | {f"score_f/{name}": parts[name] for name in parts}
    records = [{"id": f"q{at}", "em": 0.0, "score": value, "score_f": value} for at, value in enumerate(values)]
    measured = {key: {"value": value, "low": 0.25, "high": 0.75, "n": 2} for key, value in figures.items()}
    em = {"value": 0.0, "low": 0.0, "high": 0.2, "n": 2}
    return {"headline": list(figures), "reward": reward, "em": em, **measured, "records": records}


def test_an_evaluation_without_an_answer_reward_is_headed_by_its_score_and_parts() -> None:
    base, trained = scored(0.25, 0.75, turns=3.0), scored(0.5, 1.0, turns=2.0)
    line = "score 0.500 [0.25, 0.75], score_f/turns 3.000 [0.25, 0.75], n 2"
    assert evaluation_line("base", base) == f"base: {line}"
    found = headline({"base": base, "trained": trained}, "base", "trained")
    assert found == "score 0.500 -> 0.750 (+0.250 [0.25, 0.25])"
    many = scored(0.5, 1.0, **{f"p{at}": 0.0 for at in range(9)})
    assert evaluation_line("base", many).endswith(", 4 more figures, n 2")


def test_scores_of_different_rewards_are_not_compared() -> None:
    runs = {"base": scored(0.25, 0.75), "trained": scored(0.5, 1.0, reward="g")}
    found = headline(runs, "base", "trained")
    assert found == "score_f 0.500 -> 0.750 (+0.250 [0.25, 0.25])"
    del runs["trained"]["score_f"]
    assert headline(runs, "base", "trained") is None


def test_there_is_no_headline_without_a_shared_figure_or_question() -> None:
    other = {"em": evaluation(1.0)["em"], "records": [{"id": "another", "em": 1.0}]}
    assert headline({"a": evaluation(1.0), "b": evaluation(0.5, key="citation_f1")}, "a", "b") is None
    assert headline({"a": evaluation(1.0), "b": other}, "a", "b") is None
    assert headline({"a": evaluation(None), "b": evaluation(1.0)}, "a", "b") is None


def test_the_headline_of_a_run_leaves_out_its_control_arms() -> None:
    """The last evaluation shows the gold passages: nothing that the run changed."""
    gold, closed = {"retriever": "gold"}, {"closed_book": True}
    stages = [("warm", None), ("trained", None), ("closed", closed), ("gold", gold)]
    right = {"warm": (0.0, 0.0), "trained": (1.0, 0.0), "closed": (0.0, 0.0), "gold": (1.0, 1.0)}

    def line(*names: str) -> str | None:
        recipe = [{"kind": "evaluate", "name": name} | ({"env": env} if env else {}) for name, env in stages]
        return run_headline(
            RunFiles(
                folder=Path("run"),
                recipe={"stage": [{"kind": "grpo"}, *recipe]},
                recipe_text="",
                manifest={},
                metrics=[],
                evaluations={name: evaluation(*right[name]) for name in names},
                rollouts=[],
            )
        )

    found = line(*right)
    assert found is not None
    assert found.startswith("exact match 0.000 -> 0.500 (+0.500 [")
    assert line("closed", "gold") is None
    assert line("warm") is None
    assert line() is None
