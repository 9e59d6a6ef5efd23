from __future__ import annotations

from typing import Any

import pytest

from sleuth.answers.failures import echoes_prompt, evidence_shown, failure_mode, transitions

TEMPLATE = "Search when you are unsure and write your final words between the tags <answer> and </answer>. Question: "
ASKED = [{"author": "template", "text": TEMPLATE}, {"author": "env", "text": "Where was the mother of Ada Voss born?"}]


def record(
    policy: str = "<search>Ada</search>", shown: str = "", ids: tuple[str, ...] = (), **more: Any
) -> dict[str, Any]:
    """A wrong answer after one search, which showed this text of these passages."""
    segments = [*ASKED, {"author": "policy", "text": policy}, {"author": "env", "text": shown}]
    passages = [{"id": name, "title": "", "text": "hidden by a budget: Tarn"} for name in ids]
    return {
        "em": 0.0,
        "note": "wrong",
        "answer": "Quell",
        "searches": 1,
        "stop": "answered",
        "golden_answers": ["the Tarn"],
        "gold_passages": ["7", "9"],
        "segments": [*segments, {"author": "policy", "text": "<answer>Quell</answer>"}],
        "actions": [{"kind": "search", "text": "Ada", "passages": passages}],
    } | more


NO_SEARCH: dict[str, Any] = {"searches": 0, "actions": []}


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("right", record(em=1.0, note="correct")),
        ("right", record(em=1.0, **NO_SEARCH)),
        ("missing", record(em=None)),
        ("missing", record(stop="failed")),
        ("never_searches", record("<answer>Quell</answer>", **NO_SEARCH)),
        ("never_searches", record("It was Quell.", answer=None, note="no_answer", **NO_SEARCH)),
        ("echoes_prompt", record("Search when you are unsure and write your final words between", **NO_SEARCH)),
        ("echoes_prompt", record("write your final words between the tags <answer> and </answer>", answer="and")),
        ("malformed", record(answer=None, note="no_answer", stop="turns")),
        ("malformed", record(shown="Ada was born in Tarn.", note="malformed", answer="Quell")),
        ("wrong_evidence", record(shown="Quell is a town.", ids=("7", "3"))),
        ("wrong_reading", record(shown="Ada was born in TARN, by the river.", ids=("7",))),
        ("wrong_reading", record(shown="cut", ids=("9", "3", "7"))),
        ("wrong_untold", record(golden_answers=["Yes."], gold_passages=[])),
    ],
)
def test_each_failure_has_its_mode(mode: str, told: dict[str, Any]) -> None:
    assert failure_mode(told) == mode


def test_the_question_may_be_repeated_and_the_instructions_may_not() -> None:
    assert not echoes_prompt(record("I am asked where the mother of Ada Voss was born, so where was she born?"))
    assert not echoes_prompt(record("write your final words between the tags"))  # seven words are no echo
    assert echoes_prompt(record("SEARCH when you are unsure, and write your final words"))


OWN = record("<search>Tarn</search>")
OWN["segments"][1] = {"author": "env", "text": "Is Tarn a town?"}


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        (record(shown="nothing here", ids=("7",)), False),  # the answer is in text that a budget cut away
        (record(shown="a Tarnish of years"), False),
        (record(shown="(Tarn)"), True),
        (OWN, False),  # only the question and the policy wrote it
        (record(shown="yes, indeed", golden_answers=["yes"]), False),  # yes is everywhere
        (record(shown="yes, indeed", golden_answers=["yes"], gold_passages=[]), None),
        (record(ids=("7", "9"), golden_answers=["yes"]), True),
    ],
)
def test_evidence_is_what_the_policy_was_shown(told: dict[str, Any], shown: bool | None) -> None:
    assert evidence_shown(told) is shown


def test_transitions_say_what_became_of_each_failure() -> None:
    never, read, right = record("<answer>x</answer>", **NO_SEARCH), record(shown="Tarn"), record(em=1.0)
    table = transitions([(never, right), (never, right), (read, never), (right, right)])
    assert table["never_searches"]["right"] == 2
    assert table["wrong_reading"]["never_searches"] == table["right"]["right"] == 1
    assert sum(sum(row.values()) for row in table.values()) == 4
