"""The tool environment: the policy calls functions of the user, reads what they return, and ends with an answer."""

from __future__ import annotations

import asyncio
import inspect
import json
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from sleuth.dialects import Dialect
from sleuth.envs.calls import ERROR, parsed
from sleuth.envs.frames import Frame
from sleuth.envs.mcp_server import ToolServerFailed
from sleuth.envs.search import SearchEnv, result_pieces
from sleuth.judges.forms import replace_surrogates
from sleuth.retrieval.control import EmptyRetriever
from sleuth.types import Action, Passage, Piece, Reply, RetrievalFailed, Retriever, StopReason, Task
from sleuth.user_code.calls import Caller
from sleuth.user_code.functions import NAMED, UserCodeError, UserFunction

SEARCH = "search"
"""The name of the tool that searches an index."""


class FunctionTool:
    """A user's function as a tool. `schema` is its OpenAI schema, from the type hints and the docstring.

    The constructor raises UserCodeError for a function without a type hint or a description of an argument.
    """

    def __init__(self, function: UserFunction, *, seconds: float) -> None:
        self.name = function.short_name.rpartition(".")[2]
        self.schema = _schema_of(function)
        self._signature = inspect.signature(function.call)
        if odd := [one.name for one in self._signature.parameters.values() if one.kind not in NAMED]:
            raise function.error(f"takes {odd[0]} without a name; each argument of a tool needs one")
        self._adapters = _adapters_of(function)
        self._call = Caller(function, seconds=seconds, delays_engine=True)

    async def __call__(self, arguments: Mapping[str, Any]) -> str:
        """What the function returns, as text or JSON; what is wrong with the arguments or went wrong, after `ERROR`."""
        try:
            self._signature.bind(**arguments)
        except TypeError as error:
            return f"{ERROR}{self.name}: {error}"
        checked = {}
        for name, value in arguments.items():
            try:
                checked[name] = self._adapters[name].validate_python(value)
            except ValidationError as error:
                return f"{ERROR}{self.name}: {name}: {error.errors()[0]['msg']}"
        try:
            result = await self._call(**checked)
        except UserCodeError as error:
            return ERROR + str(error).partition(": ")[2]  # the policy has no use for file and line
        try:
            return _as_text(result)
        except Exception as error:  # the user's objects may raise anything when they are written
            return f"{ERROR}{self.name}: the result is not JSON: {type(error).__name__}: {error}"


@dataclass(kw_only=True)
class CallRecord:
    """The results of one step's calls. The episodes of a question that make the same call get the same result, and the
    calls that were `recorded` when the step was played before are not made again."""

    recorded: dict[tuple[str, str], str] = field(default_factory=dict)
    _running: dict[tuple[str, str], asyncio.Future[str]] = field(default_factory=dict)

    async def result(self, task: Task, call: str, make: Callable[[], Awaitable[str]]) -> str:
        """The result of a call in an episode of the task."""
        key = (task.id, call)
        if key in self.recorded:
            return self.recorded[key]
        if key not in self._running:
            self._running[key] = asyncio.ensure_future(make())
        self.recorded[key] = await asyncio.shield(self._running[key])
        return self.recorded[key]


RESULT_CHARACTERS = 1_000_000
"""Longer results are cut before they are encoded; the policy reads a few hundred tokens of one."""


class AnyTool(Protocol):
    """A function of the user's, or a tool of a server. A call returns text, which begins with `ERROR` if it failed."""

    name: str
    schema: dict[str, Any]

    async def __call__(self, arguments: Mapping[str, Any]) -> str: ...


class ToolEnv(SearchEnv):
    """The environment of one episode in which the policy may call `tools`, and search with the tool `search` if there
    is a `retriever`. Whatever is wrong with a call is its result, which the policy reads: no error ends the episode,
    unless a retriever or a server of tools cannot be reached."""

    call_kind: ClassVar[Literal["search", "call"]] = "call"

    def __init__(
        self,
        task: Task,
        dialect: Dialect,
        prompt: str,
        tools: Mapping[str, AnyTool],
        *,
        retriever: Retriever | None = None,
        record: CallRecord | None = None,
        frame: Frame | None = None,
    ) -> None:
        super().__init__(task, dialect, prompt, retriever or EmptyRetriever(), frame=frame)
        self.tools = tools
        self.searches_index = retriever is not None
        self.record = record

    async def _search(self, queries: Sequence[str], turn: str, stop: StopReason) -> Reply:
        [text] = queries
        self.searches += 1
        name, arguments = _call_in(text)
        if name == SEARCH and self.searches_index:
            return await self._search_index(text, arguments, turn, stop)
        try:
            if self.record is not None:
                result = await self.record.result(self.task, text, lambda: self._result(name, arguments))
            else:
                result = await self._result(name, arguments)
        except ToolServerFailed as error:
            return Reply(action=Action(kind="call", text=text, failure=str(error)), done="failed")
        return self._called(Action(kind="call", text=text, result=result), turn, stop)

    def _called(self, action: Action, turn: str, stop: StopReason) -> Reply:
        pieces = [Piece(text=action.result, quoted=True, budget=self.dialect.results_tokens)] if action.result else []
        return self._next(self.frame.results(turn, stop, pieces), action)

    async def _result(self, name: str | None, arguments: Any) -> str:
        if name is None or not isinstance(arguments, dict):
            return f'{ERROR}a call is {{"name": "...", "arguments": {{...}}}}'
        if name not in self.tools:
            names = [*self.tools, *([SEARCH] if self.searches_index else [])]
            called = replace_surrogates(name)
            return f"{ERROR}there is no tool {called}; there {'is' if len(names) == 1 else 'are'} {', '.join(names)}"
        return replace_surrogates((await self.tools[name](arguments))[:RESULT_CHARACTERS])

    async def _search_index(self, text: str, arguments: Any, turn: str, stop: StopReason) -> Reply:
        query = arguments.get("query") if isinstance(arguments, dict) else None
        if not isinstance(query, str) or not query.strip():
            return self._called(Action(kind="call", text=text, result=f"{ERROR}search: query: a text"), turn, stop)
        action = Action(kind="search", text=replace_surrogates(query.strip()))
        try:
            [found] = await self.retriever.search([action.text], self.dialect.top_k)
        except RetrievalFailed as error:
            return Reply(action=replace(action, failure=str(error)), done="failed")
        action = Action(kind="search", text=action.text, passages=tuple[Passage, ...](found))
        return self._next(self.frame.results(turn, stop, list(result_pieces(self.dialect, [found]))), action)


def _call_in(text: str) -> tuple[str | None, Any]:
    """The name and the arguments of a call, which may be JSON text, as some models write them."""
    call = parsed(text)
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None, None
    arguments = call.get("arguments", {})
    return call["name"], parsed(arguments) if isinstance(arguments, str) else arguments


def _schema_of(function: UserFunction) -> dict[str, Any]:
    from transformers.utils.chat_template_utils import (
        DocstringParsingException,
        TypeHintParsingException,
        get_json_schema,
    )

    try:
        return get_json_schema(function.call)
    except (DocstringParsingException, TypeHintParsingException, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise function.error(
            f"{reason}; a tool needs type hints, and a docstring with a line `name: description` for each argument "
            "under `Args:`"
        ) from None


def _adapters_of(function: UserFunction) -> dict[str, TypeAdapter[Any]]:
    hints = typing.get_type_hints(function.call, include_extras=True)
    try:
        return {name: TypeAdapter(hint) for name, hint in hints.items() if name != "return"}
    except PydanticUserError as error:
        raise function.error(f"a type hint cannot be checked: {str(error).splitlines()[0]}") from None


def _as_text(result: Any) -> str:
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
