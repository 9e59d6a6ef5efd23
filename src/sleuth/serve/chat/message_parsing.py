"""What a message of a person asks: a question to look into, or a tool output to refine."""

from __future__ import annotations

import re

from sleuth.data.refiner import TOOL_OUTPUT, evidence_of
from sleuth.recipe.data import AskWith
from sleuth.serve.http.refused import Refused
from sleuth.types import SleuthError, Task

BRIEF = re.compile(r"(?:Question: )?(?P<question>.*?)(?:\s+Reasoning: (?P<reasoning>.*))?", re.DOTALL)
"""What stands around a tool output, as the environment of a refiner writes it; a bare question will do."""


def question_of(message: str) -> Task:
    """The message is the question."""
    return Task(id="", question=message, golden_answers=())


def refining_of(message: str, ask_with: AskWith) -> Task:
    """The message holds a tool output between `<tool_output>` tags, and around it the question and, where there is one,
    the reasoning of who searched. With `ask_with` "prompt" the model reads the message itself. Raises `Refused` where
    nothing could be cited."""
    outputs = TOOL_OUTPUT.findall(message)
    if not outputs:
        line = (
            "messages: this model refines what a search found: expected <tool_output>...</tool_output> in the message"
        )
        raise Refused(400, line, param="messages")
    around = BRIEF.fullmatch(TOOL_OUTPUT.sub("", message).strip())
    assert around is not None  # it matches any text
    row = {"tool_output": "\n".join(output.strip() for output in outputs), "reasoning": around["reasoning"]}
    try:
        evidence = evidence_of(row, "messages")
    except SleuthError as error:
        raise Refused(400, str(error), param="messages") from None
    prompt = message if ask_with == "prompt" else ""
    return Task(id="", question=around["question"].strip(), golden_answers=(), evidence=evidence, prompt=prompt)
