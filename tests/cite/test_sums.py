"""Content and citations as one number: the published sums, and ours; and what tricks are paid by each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sleuth.cite.citation_reward import CitationRecipe, RewardTerms, reward_sum

GOOD = RewardTerms(content=1.0, citation=0.5, padding=0.0, well_formed=True, valid=True, finished=True)
S2 = {"sum": "additive", "citation_weight": 0.2}
S4 = {"sum": "convex", "citation_weight": 0.5}
TENFOLD = {"verification_reward": 10.0}


def value(table: dict[str, Any], **terms: Any) -> float:
    """The reward of a good answer that differs in these terms."""
    return reward_sum(CitationRecipe.model_validate({"kind": "citation"} | table), replace(GOOD, **terms))


def test_the_published_sums() -> None:
    assert value(S2 | TENFOLD) == pytest.approx(10 * (1.0 + 0.2 * 0.5))
    assert value(S4 | TENFOLD) == pytest.approx(10 * (0.5 * 1.0 + 0.5 * 0.5))


def test_an_answer_that_was_cut_off_is_paid_as_it_is_unless_the_penalty_says_nothing() -> None:
    assert value(S2, finished=False) == value(S2)
    assert value(S2 | {"non_stop_penalty": True}, finished=False) == 0.0
    cut = {"content": 0.0, "citation": 0.0, "well_formed": False, "finished": False, "padding": 1.0}
    assert value({"non_stop_penalty": True}, **cut) == 0.0


def test_the_format_gate_keeps_content_from_what_is_not_well_formed() -> None:
    assert value(S2, well_formed=False) == value(S2)
    assert value(S2 | {"format_gate": True}, well_formed=False) == pytest.approx(0.2 * 0.5)


def test_ours_is_a_gate_times_a_mix_less_a_small_penalty() -> None:
    assert value({}) == pytest.approx(0.6 * 1.0 + 0.4 * 0.5)
    assert value({}, padding=0.5) == pytest.approx(0.8 - 0.05)
    for gate in ("well_formed", "valid"):
        assert value({}, padding=0.5, **{gate: False}) == pytest.approx(-0.05)
    assert value({}, content=None) == pytest.approx(0.5)  # the citations stand in for what nothing judges
    assert value({}, padding=1.0) > value({}, valid=False)  # no filler makes an answer worth less than none
