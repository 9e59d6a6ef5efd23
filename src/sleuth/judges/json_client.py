"""A client that gets strictly parsed JSON answers from a language model behind HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sleuth.judges.judge_prompts import InvalidAnswerError, spelled_out
from sleuth.judges.pool import Ledger, RefusedError, Reply, ServerPool

Answer = TypeVar("Answer", covariant=True)
SHOWN_CHARACTERS = 200  # of an invalid answer, in the error


class JsonQuestion(Protocol[Answer]):
    """A question: the system `prompt`, the user `message`, the JSON `schema` of the answer with its `name`, the number
    of `entries` in it, and its parser."""

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

    def read(self, text: str) -> Answer:
        """The parsed answer. Raises InvalidAnswerError if it is not exactly of the form."""
        ...


class JsonClient:
    """Asks one model, at temperature 0, for JSON of a schema. A server that refuses schemas is asked without, and its
    answers are parsed as strictly. `max_tokens` is for one entry."""

    def __init__(
        self,
        urls: Sequence[str],
        model: str,
        *,
        timeout: float,
        at_once: int,
        max_tokens: int,
        extra: Mapping[str, Any] | None,
        key: str | None,
        ledger: Ledger,
    ) -> None:
        self.settings = {**(extra or {}), "model": model, "temperature": 0.0, "max_tokens": max_tokens}
        self._ledger = ledger
        self._pool = ServerPool(urls, timeout=timeout, at_once=at_once, ledger=ledger, key=key)
        self._takes_schemas: bool | None = None  # None: not known yet

    async def ask(self, question: JsonQuestion[Answer]) -> Answer:
        """The parsed answer, with one retry that says what was wrong. Raises NoAnswerError if the server gives none,
        and InvalidAnswerError if the second one is invalid too."""
        async with self._pool.slot() as deadline:
            messages = [
                {"role": "system", "content": question.prompt},
                {"role": "user", "content": question.message},
            ]
            reply = await self._reply(question, messages, deadline)
            try:
                return question.read(reply.text)
            except InvalidAnswerError as error:
                fault = _fault(error, reply)
            self._ledger.asked_again += 1
            once_more = f"That cannot be read: {spelled_out(fault)}. Answer again, in the form that is wanted."
            messages.append({"role": "assistant", "content": spelled_out(reply.text) or "(nothing)"})
            messages.append({"role": "user", "content": once_more})
            reply = await self._reply(question, messages, deadline)
            try:
                return question.read(reply.text)
            except InvalidAnswerError as error:
                fault = _fault(error, reply)
            raise InvalidAnswerError(f"{fault}: {' '.join(reply.text.split())[:SHOWN_CHARACTERS]}")

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
        except RefusedError:
            if self._takes_schemas:
                raise
            reply = await self._pool.ask(body, deadline)  # raises again if the schema was not the cause
            self._takes_schemas = False
        else:
            self._takes_schemas = True
        return reply


def _fault(error: InvalidAnswerError, reply: Reply) -> str:
    return "the tokens were spent before its end" if reply.cut else str(error)
