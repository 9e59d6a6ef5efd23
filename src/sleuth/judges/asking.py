"""One question put to a language model behind HTTP, and its answer in a form that can be read, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sleuth.judges.forms import NotAVerdictError
from sleuth.judges.pool import Ledger, Pool, RefusedError, Reply

Answer = TypeVar("Answer", covariant=True)
SHOWN = 200  # characters of an answer that could not be read, in the reason


class Asked(Protocol[Answer]):
    """A question: a system's `prompt` and a user's `message`, the JSON `schema` of an answer under a `name`, how many
    `entries` it is to have, and how it is read."""

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
        """What an answer says. Raises NotAVerdictError for one that is not exactly of the form."""
        ...


class Asker:
    """Asks one model and never another, at temperature 0. An answer is asked for as JSON of a schema; a server that
    refuses schemas is asked without, and read as strictly. `max_tokens` are those of one entry."""

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
        self._pool = Pool(urls, timeout=timeout, at_once=at_once, ledger=ledger, key=key)
        self._takes_schemas: bool | None = None  # None: not known yet

    async def ask(self, question: Asked[Answer]) -> Answer:
        """What the first answer of two says that can be read. Raises NoAnswerError where one is not there, and
        NotAVerdictError where neither can be read."""
        async with self._pool.slot() as deadline:
            messages = [
                {"role": "system", "content": question.prompt},
                {"role": "user", "content": question.message},
            ]
            reply = await self._reply(question, messages, deadline)
            try:
                return question.read(reply.text)
            except NotAVerdictError as error:
                wrong = _what_was_wrong(error, reply)
            self._ledger.asked_again += 1
            once_more = f"That cannot be read: {wrong}. Answer again, in the form that is wanted."
            messages.append({"role": "assistant", "content": reply.text or "(nothing)"})
            messages.append({"role": "user", "content": once_more})
            reply = await self._reply(question, messages, deadline)
            try:
                return question.read(reply.text)
            except NotAVerdictError as error:
                wrong = _what_was_wrong(error, reply)
            raise NotAVerdictError(f"{wrong}: {' '.join(reply.text.split())[:SHOWN]}")

    async def _reply(self, question: Asked[Any], messages: Sequence[Mapping[str, str]], deadline: float) -> Reply:
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
            reply = await self._pool.ask(body, deadline)  # raises again where it was not the schema that was refused
            self._takes_schemas = False
        else:
            self._takes_schemas = True
        return reply


def _what_was_wrong(error: NotAVerdictError, reply: Reply) -> str:
    return "the tokens were spent before its end" if reply.cut else str(error)
