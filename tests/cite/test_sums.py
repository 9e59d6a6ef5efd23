"""Content and citations as one number: the published sums, and ours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sleuth.cite.measure import RewardSum, RewardTerms

GOOD = RewardTerms(content=1.0, citation=0.5, padding=0.0, well_formed=True, valid=True, finished=True)
PUBLISHED = {"format_gate": False, "padding_penalty": 0.0}
S2 = RewardSum(name="additive", citation_weight=0.2, verification_reward=10.0, **PUBLISHED)
S4 = RewardSum(name="convex", citation_weight=0.5, verification_reward=10.0, **PUBLISHED)
OURS = RewardSum()


def test_the_published_sums() -> None:
    assert S2.value(GOOD) == pytest.approx(10 * (1.0 + 0.2 * 0.5))
    assert S4.value(GOOD) == pytest.approx(10 * (0.5 * 1.0 + 0.5 * 0.5))


def test_an_answer_that_was_cut_off_is_paid_as_it_is_unless_the_penalty_says_nothing() -> None:
    cut = replace(GOOD, content=0.0, citation=0.0, well_formed=False, finished=False)
    assert S2.value(replace(GOOD, finished=False)) == S2.value(GOOD)
    assert replace(S2, non_stop_penalty=True).value(replace(GOOD, finished=False)) == 0.0
    assert replace(OURS, non_stop_penalty=True).value(replace(cut, padding=1.0)) == 0.0


def test_the_format_gate_keeps_content_from_what_is_not_well_formed() -> None:
    loose = replace(GOOD, well_formed=False)
    assert S2.value(loose) == S2.value(GOOD)
    assert replace(S2, format_gate=True).value(loose) == pytest.approx(10 * 0.2 * 0.5)


def test_ours_is_a_gate_times_a_mix_less_a_small_penalty() -> None:
    assert OURS.value(GOOD) == pytest.approx(0.6 * 1.0 + 0.4 * 0.5)
    assert OURS.value(replace(GOOD, padding=0.5)) == pytest.approx(0.8 - 0.05)
    for gate in ("well_formed", "valid"):
        assert OURS.value(replace(GOOD, padding=0.5, **{gate: False})) == pytest.approx(-0.05)


def test_where_nothing_judges_the_content_the_citations_stand_in_for_it() -> None:
    assert OURS.value(replace(GOOD, content=None)) == pytest.approx(0.5)


def test_no_filler_makes_an_answer_worth_less_than_none() -> None:
    assert OURS.value(replace(GOOD, padding=1.0)) > OURS.value(replace(GOOD, valid=False))
