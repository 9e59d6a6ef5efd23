"""Language models behind OpenAI's chat completions (vLLM, SGLang, ...): strictly parsed JSON answers, and a judge."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sleuth.judges.judge_prompts import FORMS, InvalidAnswerError, Question, question_of, spelled_out
from sleuth.judges.pool import Ledger, NoAnswerError, RefusedError, Reply, ServerPool
from sleuth.types import AnySheet, Case, Pair, Verdict

Parsed = TypeVar("Parsed", covariant=True)
PARSER_VERSION = 1
"""Raised whenever the same answer could be parsed to another verdict."""
SHOWN_CHARACTERS = 200  # of an invalid answer, in the error


class JsonQuestion(Protocol[Parsed]):
    """A question: the system `prompt`, the user `message`, the JSON `schema` of the answer with its `name`, the number
    of `entries` in it, and its parser, which raises InvalidAnswerError for an answer that is not of the form."""

    @property
    def name(self) -> str: ...
    @property
    def prompt(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def schema(self) -> dict[str, Any]: ...
    @property
    def entries(self) -> int: ...
    def read(self, text: str) -> Parsed: ...


class JsonClient:
    """Asks one model, at temperature 0, for JSON of a schema. A server that refuses schemas is asked without, and its
    answers are parsed as strictly.

    A question without an answer within 4 x `timeout` seconds, or beyond a `budget` of calls, has none. At most
    `at_once` calls run concurrently, fewer while many fail. `extra` is added to each request, such as
    `{"chat_template_kwargs": {"enable_thinking": False}}`. `max_tokens` is for one entry; a model that thinks needs
    more. `ledger` counts the calls. `restart`: see `ServerPool`.
    """

    def __init__(
        self,
        urls: Sequence[str],
        model: str,
        *,
        timeout: float = 60.0,
        at_once: int = 256,
        max_tokens: int = 512,
        budget: int | None = None,
        extra: Mapping[str, Any] | None = None,
        key: str | None = None,
        restart: float = 0.0,
    ) -> None:
        self.ledger = Ledger(budget=budget)
        self.settings = {**(extra or {}), "model": model, "temperature": 0.0, "max_tokens": max_tokens}
        self._pool = ServerPool(urls, timeout=timeout, at_once=at_once, ledger=self.ledger, key=key, restart=restart)
        self._takes_schemas: bool | None = None  # None: not known yet

    async def ask(self, question: JsonQuestion[Parsed]) -> Parsed:
        """The parsed answer, with one retry that says what was wrong. Raises NoAnswerError if the server gives none,
        and InvalidAnswerError if the second one is invalid too."""
        messages = [
            {"role": "system", "content": question.prompt},
            {"role": "user", "content": question.message},
        ]
        async with self._pool.slot() as deadline:
            reply = await self._reply(question, messages, deadline)
            try:
                return question.read(reply.text)
            except InvalidAnswerError as error:
                fault = _fault(error, reply)
            once_more = f"That cannot be read: {spelled_out(fault)}. Answer again, in the form that is wanted."
            messages.append({"role": "assistant", "content": spelled_out(reply.text) or "(nothing)"})
            messages.append({"role": "user", "content": once_more})
            reply = await self._reply(question, messages, deadline)
        try:
            return question.read(reply.text)
        except InvalidAnswerError as error:
            shown = " ".join(reply.text.split())[:SHOWN_CHARACTERS]
            raise InvalidAnswerError(f"{_fault(error, reply)}: {shown}") from None

    async def _reply(
        self, question: JsonQuestion[Any], messages: Sequence[Mapping[str, str]], deadline: float
    ) -> Reply:
        body = {**self.settings, "messages": messages}
        body["max_tokens"] *= question.entries
        if self._takes_schemas is False:
            return await self._pool.ask(body, deadline)
        schema = {"name": question.name, "schema": question.schema, "strict": True}
        with_schema = {**body, "response_format": {"type": "json_schema", "json_schema": schema}}
        try:
            reply = await self._pool.ask(with_schema, deadline)
            self._takes_schemas = True
        except RefusedError:
            if self._takes_schemas:
                raise
            reply = await self._pool.ask(body, deadline)  # raises again if the schema was not the cause
            self._takes_schemas = False
        return reply


def _fault(error: InvalidAnswerError, reply: Reply) -> str:
    return "the tokens were spent before its end" if reply.cut else str(error)


class HttpJudge(JsonClient):
    """A `Judge`, a `SheetJudge` and a `PairJudge` that asks one model, one question per call. A question without an
    answer has a missing verdict; a second answer that cannot be parsed makes the verdict `invalid`."""

    @property
    def identity(self) -> str:
        """Everything that a verdict depends on except the server: the model's name in the request, the prompts, the
        settings of the request and the parser's version."""
        parts = [PARSER_VERSION, [[form.prompt, form.schema] for form in FORMS], self.settings]
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
        return f"http {self.settings['model']} {digest[:16]}"

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """A verdict of 0, 0.5 or 1 for each case, or a missing one with its reason."""
        return [verdict for [verdict] in await self._all(cases)]

    async def rate(self, sheets: Sequence[AnySheet]) -> list[list[Verdict]]:
        """For each sheet a verdict of 0, 0.5 or 1 per case; either all of them, or all missing with the reason."""
        return await self._all(sheets)

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Which answer of each pair is better, in the order given."""
        return [verdict for [verdict] in await self._all(pairs)]

    async def _all(self, items: Iterable[Case | AnySheet | Pair]) -> list[list[Verdict]]:
        return await asyncio.gather(*(self._verdicts(question_of(item)) for item in items))

    async def _verdicts(self, question: Question) -> list[Verdict]:
        try:
            return await self.ask(question)
        except NoAnswerError as error:
            return [Verdict(score=None, reason=str(error))] * question.entries
        except InvalidAnswerError as error:
            reason = f"twice no verdict: {error}"
            return [Verdict(score=None, reason=reason, invalid=True)] * question.entries
