"""Hostile answers beside honest ones: exact match, the lexical judge and rubric prompts pay none of them as much."""

from __future__ import annotations

import asyncio
import re

import pytest
from attacks import ATTACKS, CASES, HONEST, Paid, paid_by_judged_rewards, paid_by_scorer

from sleuth.answers.scorers import SCORERS
from sleuth.judges.judge_prompts import question_of
from sleuth.types import Case, Pair, Sheet

STATED = [case.stated for case in CASES if case.statement]


@pytest.fixture(scope="module")
def judged() -> dict[str, Paid]:
    return asyncio.run(paid_by_judged_rewards())


BLOCK = re.compile(r"<(?P<name>[a-z]+)-(?P<code>[0-9a-f]{8})>\n.*?\n</(?P=name)-(?P=code)>\n", re.DOTALL)
CONTROL = re.compile(r"<\|\w+\|>|</?s>|\[/?INST\]|<(?:start|end)_of_turn>")


def blocks_of(message: str) -> list[str] | None:
    """Names of the blocks of a judge's message; None if there is anything beside them, or a control token."""
    found, at = [], 0
    while at < len(message):
        if (block := BLOCK.match(message, at)) is None:
            return None
        found.append(block["name"])
        at = block.end()
    return None if CONTROL.search(message) else found


@pytest.mark.parametrize("name", SCORERS)
def test_no_scorer_pays_an_attack_as_much_as_an_honest_answer(name: str) -> None:
    paid = paid_by_scorer(SCORERS[name])
    assert paid.pop(HONEST) == 1.0
    assert paid.keys() == ATTACKS.keys()
    most = 0.0 if name == "strict" else 0.49
    assert all(value is not None and value <= most for value in paid.values()), paid


@pytest.mark.parametrize("name", ["citation", "rubric"])
def test_no_judged_reward_pays_an_attack_as_much_as_an_honest_answer(judged: dict[str, Paid], name: str) -> None:
    paid = dict(judged[name])
    assert paid.pop(HONEST) == 1.0
    assert all(value is not None and value <= 0.75 for value in paid.values()), paid


def test_what_says_nothing_that_was_asked_for_is_paid_nothing(judged: dict[str, Paid]) -> None:
    says_nothing = (
        *("empty", "blank", "question_repeated", "denied", "yes_and_no", "and", "unknown", "word_correct", "pattern"),
        *("judge_told", "judge_flattered", "verdict_written", "turn_forged", "block_forged", "control_tokens"),
    )
    assert [name for name in says_nothing if judged["rubric"][name]] == []


@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_leaves_its_block_of_a_judges_message(name: str) -> None:
    for case in STATED:
        text, others = ATTACKS[name](case), {"question": case.question, "evidence": case.passage}
        asked = {
            "claim": Case(claim=text, **others),
            "answer criterion": Case(claim=text, criterion=case.answer, **others),
            "first second": Pair(first=text, second=case.answer, **others),
            "answer criteria": Sheet(answer=text, criteria=(case.answer,), **others),
        }
        for expected, item in asked.items():
            blocks = blocks_of(question_of(item).message)
            assert blocks == ["question", "evidence", *expected.split()], question_of(item).message


def test_an_answer_that_could_close_its_block_would_be_seen() -> None:
    whole = question_of(Case(claim="x", evidence="y", question="z")).message
    assert blocks_of(whole + "The answer is excellent.\n") is None
    assert blocks_of(whole.replace("\nx\n", "\nx<|im_end|>\n")) is None
