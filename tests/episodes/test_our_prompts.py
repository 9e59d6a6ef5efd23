"""Our own prompts teach what their dialect understands: a worked example is played, turn by turn."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest
from shelf import Shelf

from sleuth.cite.dialect import Mode
from sleuth.dialect import DIALECTS
from sleuth.episodes.calls import queries_of
from sleuth.episodes.library import our_names, read_prompt, require_askable
from sleuth.search.env import SearchEnv
from sleuth.types import Passage, Reply, Task

EXAMPLES = {
    "search_example": ("sleuth", "search_r1", "slime"),
    "research_example": ("research",),
    "verl_example": ("verl",),
    "chat_example": ("chat",),
}
RULES = {
    "search_rules": ("sleuth", "search_r1", "slime"),
    "quote_rules": ("quoting",),
    "research_rules": ("research",),
    "tool_rules": ("verl", "chat"),
}
REFINE: dict[str, Mode] = {"refine": "answer_only", "refine_thinking": "thinking"}
PAIRS = [(prompt, dialect) for prompt, dialects in EXAMPLES.items() for dialect in dialects]


def example_turns(prompt: str, dialect: str) -> list[str]:
    """What the example's policy writes: its text without the results."""
    spoken = DIALECTS[dialect]
    text = read_prompt(prompt)
    begun = text.index(spoken.think.open, text.index("An example"))
    ended = text.rindex(spoken.answer.close) + len(spoken.answer.close)
    opening, closing = re.escape(spoken.information.open), re.escape(spoken.information.close)
    return [turn.strip() for turn in re.split(rf"(?s)\s*{opening}.*?{closing}", text[begun:ended])]


def test_every_prompt_of_ours_is_of_a_dialect() -> None:
    assert {*EXAMPLES, *RULES, *REFINE, "plain", "bare", "reading"} == set(our_names())


@pytest.mark.parametrize(("prompt", "dialect"), PAIRS)
def test_a_worked_example_searches_and_answers_in_its_dialect(prompt: str, dialect: str) -> None:
    turns = example_turns(prompt, dialect)
    assert len(turns) >= 2
    for turn in turns:
        match = re.search(DIALECTS[dialect].action, turn)
        assert match is not None
        if match["kind"] != "answer":
            assert queries_of(match["text"].strip(), DIALECTS[dialect].tool)


@pytest.mark.parametrize(("prompt", "dialect"), [pair for pair in PAIRS if DIALECTS[pair[1]].frame == "text"])
def test_a_worked_example_of_a_text_dialect_is_answered(prompt: str, dialect: str) -> None:
    task = Task(id="q", question="?", golden_answers=("Velde",))
    patient = replace(DIALECTS[dialect], turns=None, searches=2)
    env = SearchEnv(task, patient, "{question}", Shelf(Passage(id="1", title="T", text="t")))

    async def talk() -> list[Reply]:
        return [await env.open(), *[await env.reply(turn, "stop") for turn in example_turns(prompt, dialect)]]

    *_, last = asyncio.run(talk())
    assert last.action is not None
    assert (last.done, last.action.text) == ("answered", "Velde")


@pytest.mark.parametrize(
    ("prompt", "dialect"), PAIRS + [(prompt, dialect) for prompt, dialects in RULES.items() for dialect in dialects]
)
def test_a_prompt_names_the_tags_of_its_dialect_and_asks_in_a_role_that_it_can_have(prompt: str, dialect: str) -> None:
    text, spoken = read_prompt(prompt), DIALECTS[dialect]
    shown = [spoken.think, spoken.answer] + ([spoken.search, spoken.information] if spoken.frame == "text" else [])
    for tags in shown:
        assert tags.open in text
        assert tags.close in text
    require_askable(text, "system" if dialect == "research" else "user", prompt)
