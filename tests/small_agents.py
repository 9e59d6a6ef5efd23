"""Agents that answer by a script, and applications served over a real socket."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any

from shelf import Shelf
from starlette.applications import Starlette
from starlette.testclient import TestClient

from sleuth.cite.dialect import REFINERS
from sleuth.cite.env import RefineEnv
from sleuth.dialect import DIALECTS
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.recipe.data import AskWith
from sleuth.render import IncrementalDecoder, Renderer
from sleuth.search.env import SearchEnv
from sleuth.serve.access import LOOPBACK, Access, conversation_limits
from sleuth.serve.agent import Agent, question_task, refining_task
from sleuth.serve.chat_app import chat_app
from sleuth.types import Chunk, Passage, Sampling, Task
from sleuth.world.tokens import make_tokenizer

TOKENIZER = make_tokenizer(200)
ADA = Passage(id="17", title="Ada Voss", text="Ada Voss was born in Tarn.", score=2.5)
TARN = Passage(id="4", title="Tarn", text="Tarn <b>is</b> a town by a lake.", score=1.0)
LAKE = Passage(id="9", title="Lake", text="A lake.", score=0.5)
FOUND = (ADA, TARN, LAKE)


class PacedEngine(ScriptedEngine):
    """Streams its script token by token, each after `seconds`; counts whom it is writing for."""

    def __init__(self, answer: Callable[[str, Sampling], str], seconds: float = 0.0) -> None:
        super().__init__(TOKENIZER, answer)
        self.seconds = seconds
        self.running = 0

    async def stream(self, tokens: Sequence[int], sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        self.running += 1
        try:
            written = await self.complete(tokens, sampling)
            decoder, told = IncrementalDecoder(TOKENIZER, tokens), ""
            for at, token in enumerate(written.tokens, start=1):
                await asyncio.sleep(self.seconds)
                last = at == len(written.tokens)
                text = written.text[len(told) :] if last else decoder.push(token)
                told += text
                yield Chunk(tokens=(token,), logprobs=(-0.5,), text=text, stop=written.stop if last else None)
        finally:
            self.running -= 1


def diligent(text: str, sampling: Sampling) -> str:
    """Thinks, searches once, thinks again and answers."""
    if "<information>" in text:
        return "<think>It says Tarn.</think><answer> Tarn</answer>"
    return "<think>I look for Ada.</think><search> Ada Voss</search>"


def quotes(words: str) -> Callable[[str, Sampling], str]:
    """Searches, answers `Tarn` and goes on with these words of a passage, in the dialect of the reader."""
    return lambda text, sampling: (
        f"<answer> Tarn [{words}]</answer>" if "<passage>" in text else "<search> Ada</search>"
    )


def agent(
    answer: Callable[[str, Sampling], str] = diligent,
    *,
    shelf: Shelf | None = None,
    seconds: float = 0.0,
    forced_search: bool = False,
    context: int = 600,
    dialect: str = "sleuth",
    **changes: Any,
) -> Agent:
    protocol = dataclasses.replace(DIALECTS[dialect], turn_tokens=200, **changes)

    def env(task: Task) -> SearchEnv:
        found = shelf or Shelf(*FOUND)
        return SearchEnv(task, protocol, "Question: {question}\n", found, forced_search=forced_search)

    return Agent(
        name="tiny",
        engine=PacedEngine(answer, seconds),
        renderer=Renderer(TOKENIZER),
        make_task=question_task,
        env=env,
        dialect=protocol,
        context=context,
        facts={"dialect": protocol.name, "context": context, "passages": len(FOUND)},
    )


def refiner(answer: Callable[[str, Sampling], str], *, ask_with: AskWith = "question", context: int = 600) -> Agent:
    """An agent that refines what it is given, in one answer."""
    dialect = dataclasses.replace(REFINERS["answer_only"], turn_tokens=200)
    return Agent(
        name="tiny",
        engine=PacedEngine(answer),
        renderer=Renderer(TOKENIZER),
        make_task=partial(refining_task, ask_with=ask_with),
        env=lambda task: RefineEnv(task, dialect, "Refine.\n{question}\n"),
        dialect=dialect,
        context=context,
        facts={"dialect": dialect.name, "context": context},
    )


def app_of(served: Agent, *, conversations: int = 8, **limits: float) -> Starlette:
    return chat_app(served, conversation_limits(**limits), conversations=conversations, access=Access(hosts=LOOPBACK))


def client_of(app: Starlette) -> TestClient:
    return TestClient(app, base_url="http://127.0.0.1:8000")


def refused(answer: Any) -> str:
    """The one line of a refusal, whose shape is OpenAI's."""
    problem = answer.json()["error"]
    assert problem.keys() == {"message", "type", "param", "code"}
    assert "\n" not in problem["message"]
    return problem["message"]
