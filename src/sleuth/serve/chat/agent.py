"""A checkpoint in its environment, ready to answer people."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sleuth.data.refiner import TOOL_OUTPUT, evidence_of
from sleuth.dialects import Dialect
from sleuth.dialects.refine import refines
from sleuth.engines.local.engine import LocalEngine
from sleuth.evaluation.eval_session import EvalSession
from sleuth.recipe.data import AskWith
from sleuth.render import Renderer
from sleuth.retrieval.index_card import read_card
from sleuth.serve.http.refused import Refused
from sleuth.types import Engine, Env, SleuthError, Task

LONGEST_TOKEN = 32
"""Characters that a token of a long text may have on average; a question of more is not even encoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """Who answers under `name`: `asked` makes a task of a message, and `env` its environment; `engine` writes, and
    `dialect` tells what is a thought, a query and an answer in what was written. `facts` are for people to read."""

    name: str
    engine: Engine
    renderer: Renderer
    asked: Callable[[str], Task]
    env: Callable[[Task], Env]
    dialect: Dialect
    context: int
    facts: Mapping[str, Any]

    @property
    def characters(self) -> int:
        """What the context may hold at most."""
        return self.context * LONGEST_TOKEN


def agent_of(session: EvalSession, name: str, index: Path | None) -> Agent:
    """The agent of an examination: what is served is asked as it is measured. `index` is the one that it searches."""
    setting = session.setting
    facts = {"dialect": setting.dialect.name, "context": session.context, "protocol": session.protocol().hash}
    if index is not None:
        facts["passages"] = read_card(index).count
    return Agent(
        name=name,
        engine=LocalEngine(session.weights, session.tokenizer, slots=session.slots, context=session.context),
        renderer=Renderer(session.tokenizer),
        asked=partial(refining_of, ask_with=setting.ask_with) if refines(setting.dialect) else question_of,
        env=setting.env,
        dialect=setting.dialect,
        context=session.context,
        facts=facts,
    )


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
