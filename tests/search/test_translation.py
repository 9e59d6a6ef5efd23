"""What a policy said in one dialect, said in another."""

from __future__ import annotations

import re

import pytest

from sleuth.dialect import DIALECTS, Dialect
from sleuth.episodes.calls import queries_of
from sleuth.search.warm_start import translated

SLEUTH = DIALECTS["sleuth"]
SEARCH = "<think> birthplace of Ada Voss</think><search> Ada Voss</search>"
ANSWER = "<think> it is Tarn</think><answer> Tarn</answer>"


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_a_search_is_the_same_search_in_every_dialect(dialect: Dialect) -> None:
    said = translated(SEARCH, SLEUTH, dialect)
    assert said is not None
    match = re.search(dialect.action, said)
    assert match is not None
    assert match["kind"] != "answer"
    assert queries_of(match["text"].strip(), dialect.tool) == ("Ada Voss",)
    assert said.startswith(dialect.think.around(" birthplace of Ada Voss"))


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_an_answer_is_the_same_answer_in_every_dialect_and_back(dialect: Dialect) -> None:
    said = translated(ANSWER, SLEUTH, dialect)
    assert said is not None
    match = re.search(dialect.action, said)
    assert match is not None
    assert match["kind"] == "answer"
    inner = re.search(dialect.answer_inner, match["text"]) if dialect.answer_inner else match
    assert inner is not None
    assert inner["text"].strip() == "Tarn"
    assert translated(said, dialect, SLEUTH) == ANSWER


@pytest.mark.parametrize(
    ("turn", "spoken"),
    [
        ("I do not know", "sleuth"),
        ("<search> Ada", "sleuth"),
        ("<answer>Tarn, without a box</answer>", "research"),
        ("<tool_call>no json</tool_call>", "chat"),
        ('<tool_call>{"name": "search", "arguments": {"query": "one"}}</tool_call>' * 2, "chat"),
        ('<tool_call>{"name": "search", "arguments": {"query_list": ["one", "two"]}}</tool_call>', "verl"),
    ],
)
def test_a_turn_without_an_action_or_with_too_many_queries_is_not_translated(turn: str, spoken: str) -> None:
    assert translated(turn, DIALECTS[spoken], SLEUTH) is None
