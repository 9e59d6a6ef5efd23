"""Tricks against the sums: under ours none is worth as much as honesty; under the published ones some are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from refined import refined, scored

from sleuth.cite.citation_reward import CitationReward, Formula
from sleuth.cite.dialect import REFINERS
from sleuth.cite.measure import RewardSum
from sleuth.cite.tricks import TRICKS, honest_answer
from sleuth.judges.lexical import LexicalJudge
from sleuth.types import Task

SNIPPETS = {
    "k": "The Silent Harbor, a novel of 1901, was written by Ada Voss, whom her neighbours called a recluse.",
    "m": "Ada Voss was born in Tarn in 1874, as the eldest of nine children of a miller and a seamstress there.",
    "p": "Ida Voss was born in Velde in 1880, and grew up beside the sea with an aunt who kept a lighthouse.",
    "q": "The Silent Valley, an opera of 1911, was written by Ada Quist, who conducted it herself in Velde.",
}
ANSWER = "<snippet id=k>Ada Voss wrote The Silent Harbor.</snippet> <snippet id=m>Ada Voss was born in Tarn.</snippet>"
ABSTENTION = "The tool output does not answer this."
S2, S4 = (
    {"name": name, "citation_weight": weight, "format_gate": False, "padding_penalty": 0.0}
    for name, weight in (("additive", 0.2), ("convex", 0.5))
)


def task(answer: str = ANSWER, *, answerable: bool = True) -> Task:
    found = refined(answer, snippets=SNIPPETS, golden=("Tarn",) if answerable else (), answerable=answerable).task
    return replace(found, reference=f"<answer>{answer}</answer>")


def paid(asked: Task, formula: Formula = "f1", **terms: Any) -> tuple[float, dict[str, float]]:
    """What the honest answer gets, and every trick that can be played."""
    honest = honest_answer(asked)
    assert honest is not None
    assert asked.evidence is not None
    answers = {"honest": honest.text} | {name: text for name, t in TRICKS.items() if (text := t(honest)) is not None}
    reward = CitationReward(REFINERS["answer_only"], LexicalJudge(), RewardSum(**terms), formula=formula)
    told = {"snippets": SNIPPETS, "golden": asked.golden_answers, "answerable": asked.evidence.answerable}
    episodes = [refined(text, **told, stop="answered" if text else "turns") for text in answers.values()]
    values = {name: score.value for name, score in zip(answers, scored(*episodes, reward=reward), strict=True)}
    known = {name: value for name, value in values.items() if value is not None}
    assert known.keys() == values.keys()
    return known.pop("honest"), known


def winners(asked: Task, formula: Formula = "f1", **terms: Any) -> set[str]:
    honest, tricks = paid(asked, formula, **terms)
    return {name for name, value in tricks.items() if value >= honest}


def test_every_trick_can_be_played_on_a_question_that_has_an_answer() -> None:
    assert paid(task())[1].keys() == TRICKS.keys()


def test_under_our_sum_no_trick_is_worth_as_much_as_an_honest_answer() -> None:
    honest, tricks = paid(task())
    assert honest == 1.0
    assert all(value < 1.0 for value in tricks.values()), tricks
    assert tricks["copied"] < 0.9
    assert max(tricks[name] for name in ("ids_made_up", "own_evidence", "empty", "silence")) <= 0.0


def test_under_our_sum_no_trick_is_worth_as_much_as_an_honest_abstention() -> None:
    asked = task(ABSTENTION, answerable=False)
    assert paid(asked)[0] == 1.0
    assert winners(asked) == set()


@pytest.mark.parametrize(
    ("formula", "terms", "expected"),
    [
        ("f1", S2, {"filler", "repetition", "copied"}),
        ("f1", S4, {"filler", "repetition", "copied"}),
        *(
            ("dr_tulu", terms, {"filler", "repetition", "copied", "ids_stuffed", "right_id_last", "right_id_first"})
            for terms in (S2, S4)
        ),
    ],
)
def test_the_published_sums_pay_some_tricks_as_much_as_honesty(
    formula: Formula, terms: dict[str, Any], expected: set[str]
) -> None:
    assert winners(task(), formula, **terms) == expected


def test_a_row_without_an_answer_of_its_own_has_no_honest_one() -> None:
    assert honest_answer(replace(task(), reference="")) is None
    assert honest_answer(replace(task(), evidence=None)) is None
