"""Content and citations as one number: the published sums, and ours; and what tricks are paid by each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from refined import citation_reward, refined, scored

from sleuth.cite.citation_reward import CitationRecipe, RewardTerms, reward_sum
from sleuth.cite.hostile import TRICKS, honest_answer, tricks_on
from sleuth.types import Task

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


SNIPPETS = {
    "k": "The Silent Harbor, a novel of 1901, was written by Ada Voss, whom her neighbours called a recluse.",
    "m": "Ada Voss was born in Tarn in 1874, as the eldest of nine children of a miller and a seamstress there.",
    "p": "Ida Voss was born in Velde in 1880, and grew up beside the sea with an aunt who kept a lighthouse.",
    "q": "The Silent Valley, an opera of 1911, was written by Ada Quist, who conducted it herself in Velde.",
}
ANSWER = "<snippet id=k>Ada Voss wrote The Silent Harbor.</snippet> <snippet id=m>Ada Voss was born in Tarn.</snippet>"
ABSTENTION = "The tool output does not answer this."
ALWAYS_PAID = {"filler", "repetition", "copied"}


def task(answer: str = ANSWER, *, answerable: bool = True) -> Task:
    found = refined(answer, snippets=SNIPPETS, golden=("Tarn",) if answerable else (), answerable=answerable).task
    return replace(found, reference=f"<answer>{answer}</answer>")


def paid(asked: Task, **table: Any) -> tuple[float, dict[str, float]]:
    """What the honest answer gets, and every trick that can be played."""
    honest = honest_answer(asked)
    assert honest is not None
    assert asked.evidence is not None
    answers = {"honest": honest.text} | tricks_on(honest)
    told = {"snippets": SNIPPETS, "golden": asked.golden_answers, "answerable": asked.evidence.answerable}
    episodes = [refined(text, **told, stop="answered" if text else "turns") for text in answers.values()]
    scores = scored(*episodes, reward=citation_reward(**table))
    values = {name: score.value for name, score in zip(answers, scores, strict=True)}
    known = {name: value for name, value in values.items() if value is not None}
    assert known.keys() == values.keys()
    return known.pop("honest"), known


def test_under_our_sum_no_trick_is_worth_as_much_as_an_honest_answer() -> None:
    honest, tricks = paid(task())
    assert tricks.keys() == TRICKS.keys()
    assert honest == 1.0
    assert all(value < 1.0 for value in tricks.values()), tricks
    assert tricks["copied"] < 0.9
    assert max(tricks[name] for name in ("ids_made_up", "own_evidence", "empty", "silence")) <= 0.0
    honest, tricks = paid(task(ABSTENTION, answerable=False))
    assert honest == 1.0 > max(tricks.values())


@pytest.mark.parametrize("table", [S2, S4])
@pytest.mark.parametrize(
    ("formula", "expected"),
    [("f1", ALWAYS_PAID), ("dr_tulu", ALWAYS_PAID | {"ids_stuffed", "right_id_last", "right_id_first"})],
)
def test_the_published_sums_pay_some_tricks_as_much_as_honesty(
    formula: str, table: dict[str, Any], expected: set[str]
) -> None:
    honest, tricks = paid(task(), formula=formula, **table)
    assert {name for name, value in tricks.items() if value >= honest} == expected


def test_a_row_without_an_answer_of_its_own_has_no_honest_one() -> None:
    assert honest_answer(replace(task(), reference="")) is None
    assert honest_answer(replace(task(), evidence=None)) is None
