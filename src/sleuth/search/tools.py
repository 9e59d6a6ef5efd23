"""The tool environment: the policy calls functions of the user, reads what they return, and ends with an answer; and
its setting."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any, ClassVar, Literal

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from transformers import PreTrainedTokenizerFast

from sleuth.dialect import Dialect
from sleuth.episodes.calls import ERROR, CallRecord, EpisodeCalls, parsed
from sleuth.episodes.frames import Frame
from sleuth.episodes.function import env_code_in, failed
from sleuth.episodes.mcp_server import ServerTool, ToolServerFailed, tool_server
from sleuth.episodes.own_object import NOT_TOOLS, OwnObject, require_makes, takes_task, tool_names
from sleuth.episodes.setting import Setting, asked_by
from sleuth.host.escapes import replace_surrogates
from sleuth.own.calls import THREADS, Caller, shown_value
from sleuth.own.functions import NAMED, UserCodeError, UserFunction, load_function
from sleuth.recipe.envs import ToolTableRecipe
from sleuth.retrieval.open_index import open_index
from sleuth.search.dialects import SEARCH_TOOL, TOOLS_CHAT, TOOLS_TEXT
from sleuth.search.env import NONE_LEFT, EmptyRetriever, SearchEnv
from sleuth.search.tables import ToolEnvRecipe
from sleuth.types import (
    Action,
    Env,
    EpisodeKey,
    Group,
    Piece,
    Reply,
    Retriever,
    Score,
    SleuthError,
    StopReason,
    Task,
)

SEARCH_SCHEMA = SEARCH_TOOL.schema
SEARCH = SEARCH_TOOL.name
"""The name of the tool that searches an index."""


class FunctionTool:
    """A user's function as a tool, or a method of a user's class, of which each episode has an object, `CLASS(task)`
    or `CLASS()`. `schema` is its OpenAI schema, from the type hints and the docstring.

    The constructor raises UserCodeError for a function without a type hint or a description of an argument.
    """

    def __init__(self, function: UserFunction, *, seconds: float, shared: bool = False) -> None:
        self.name = function.short_name.rpartition(".")[2]
        self.shared = shared
        self._class = _class_of(function)
        if self._class is not None:
            require_makes(self._class, {})
            if shared:
                raise function.error("shared = true: each episode has an object of its own; make it a function")
            function = replace(function, call=MethodType(function.call, object()))
        self.schema = _schema_of(function)
        self._signature = inspect.signature(function.call)
        if odd := [one.name for one in self._signature.parameters.values() if one.kind not in NAMED]:
            raise function.error(f"takes {odd[0]} without a name; each argument of a tool needs one")
        self._adapters = _adapters_of(function)
        at_once = 1 if self._class is None else THREADS
        self._call = Caller(function, seconds=seconds, delays_engine=True, at_once=at_once)

    async def __call__(self, arguments: Mapping[str, Any], episode: EpisodeCalls) -> str:
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
            result = await self._call.run(await self._function(episode), **checked)
        except UserCodeError as error:
            return ERROR + str(error).partition(": ")[2]  # the policy has no use for file and line
        try:
            return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
        except Exception as error:  # the user's objects may raise anything when they are written
            return f"{ERROR}{self.name}: the result is not JSON: {type(error).__name__}: {error}"

    async def _function(self, episode: EpisodeCalls) -> Callable[..., Any]:
        if self._class is None:
            return self._call.function.call
        if self._class.name not in episode.objects:
            arguments = (episode.task,) * takes_task(self._class)
            episode.objects[self._class.name] = await self._call.run(self._class.call, *arguments)
        return getattr(episode.objects[self._class.name], self.name)


RESULT_CHARACTERS = 1_000_000
"""Longer results are cut before they are encoded; the policy reads a few hundred tokens of one."""


AnyTool = FunctionTool | ServerTool
"""A call returns text, which begins with `ERROR` if it failed."""


class ToolEnv(SearchEnv):
    """The environment of one episode in which the policy may call `tools`, and search with the tool `search` if there
    is a `retriever`. Whatever is wrong with a call is its result, which the policy reads: no error ends the episode,
    unless a retriever or a server of tools cannot be reached.

    With an `own` object, whose methods are tools, the episode begins with its `reset`, whose text follows the question;
    ends after a turn in which its attribute `done` became true; and has the score that it gives."""

    call_kind: ClassVar[Literal["search", "call"]] = "call"

    def __init__(
        self,
        task: Task,
        dialect: Dialect,
        prompt: str,
        tools: Mapping[str, AnyTool],
        *,
        retriever: Retriever | None = None,
        calls: EpisodeCalls | None = None,
        frame: Frame | None = None,
        own: OwnObject | None = None,
    ) -> None:
        super().__init__(task, dialect, prompt, retriever or EmptyRetriever(), frame=frame)
        self.tools = tools
        self.searches_index = retriever is not None
        self.calls = calls or EpisodeCalls(task)
        self.own = own
        self._observed: list[Piece] = []

    async def open(self) -> Reply:
        if self.own is not None:
            try:
                await self._begin(self.own)
            except UserCodeError as error:
                return failed(error)
        return await super().open()

    async def _begin(self, own: OwnObject) -> None:
        await own.create()
        self.calls.objects[own.make.function.name] = own.made
        text = await own.reset() if own.has("reset") else None
        if not isinstance(text, str | None):
            raise own.error("reset", f"returned {shown_value(text)}; expected text that follows the question, or None")
        self._observed = [Piece(text=replace_surrogates(text), quoted=True)] if text else []

    def _question(self) -> list[Piece]:
        return [*super()._question(), *self._observed]

    async def score(self) -> Score | None:
        """What its object gives."""
        return None if self.own is None else await self.calls.score(self.own.score)

    async def close(self) -> None:
        """Closes its object."""
        if self.own is not None:
            await self.own.close()

    async def _reply_to(
        self, calls: Sequence[str], queries: Sequence[Sequence[str]], turn: str, stop: StopReason
    ) -> Reply:
        reply = await super()._reply_to(calls, queries, turn, stop)
        try:
            if self.own is None or reply.done is not None or not await self.calls.is_done(self.own.is_done):
                return reply
        except UserCodeError as error:
            return failed(error)
        return replace(reply, pieces=(), restarts=False, done="answered")

    async def _search(self, queries: Sequence[str]) -> tuple[Action, Sequence[Piece] | None]:
        [text] = queries
        name, arguments = _call_in(text)
        if name == SEARCH and self.searches_index:
            return await self._search_index(text, arguments)
        shared = name is not None and name in self.tools and self.tools[name].shared
        try:
            result = await self.calls.result(text, lambda: self._result(name, arguments), shared=shared)
        except ToolServerFailed as error:
            return Action(kind="call", text=text, failure=str(error)), None
        return self._called(text, result)

    async def _beyond_limit(self, queries: Sequence[str]) -> tuple[Action, Sequence[Piece]]:
        [text] = queries
        return self._called(text, await self.calls.result(text, _none_left, shared=False))

    def _called(self, text: str, result: str) -> tuple[Action, Sequence[Piece]]:
        pieces = [Piece(text=result, quoted=True, budget=self.dialect.results_tokens)] if result else []
        return Action(kind="call", text=text, result=result), pieces

    async def _result(self, name: str | None, arguments: Any) -> str:
        if name is None or not isinstance(arguments, dict):
            return f'{ERROR}a call is {{"name": "...", "arguments": {{...}}}}'
        if name not in self.tools:
            names = [*self.tools, *([SEARCH] if self.searches_index else [])]
            called = replace_surrogates(name)
            return f"{ERROR}there is no tool {called}; there {'is' if len(names) == 1 else 'are'} {', '.join(names)}"
        return replace_surrogates((await self.tools[name](arguments, self.calls))[:RESULT_CHARACTERS])

    async def _search_index(self, text: str, arguments: Any) -> tuple[Action, Sequence[Piece] | None]:
        query = arguments.get("query") if isinstance(arguments, dict) else None
        if not isinstance(query, str) or not query.strip():
            return self._called(text, f"{ERROR}search: query: a text")
        return await super()._search([replace_surrogates(query.strip())])


async def _none_left() -> str:
    return f"{ERROR}{NONE_LEFT}"


def _call_in(text: str) -> tuple[str | None, Any]:
    """The name and the arguments of a call, which may be JSON text, as some models write them."""
    call = parsed(text)
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None, None
    arguments = call.get("arguments", {})
    return call["name"], parsed(arguments) if isinstance(arguments, str) else arguments


def _class_of(function: UserFunction) -> UserFunction | None:
    """The class of which `my_tools:Pages.next_page` is a method; None for functions and the methods of objects."""
    *path, name = function.short_name.split(".")
    owner: Any = function.module
    for part in path:
        owner = getattr(owner, part)
    if not isinstance(owner, type) or not inspect.isfunction(inspect.getattr_static(owner, name)):
        return None
    return replace(function, name=function.name.rpartition(".")[0], call=owner)


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


TOOLS = "{tools}"
"""The placeholder for the descriptions of tools in a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSetting(Setting):
    """What the episodes with the user's tools share; `record` has the results of one step's calls, and `make` makes the
    object of an episode, whose methods are tools."""

    tools: Mapping[str, AnyTool]
    retriever: Retriever | None = None
    record: CallRecord | None = None
    make: Caller | None = None

    def env(self, task: Task, key: EpisodeKey = (0, 0)) -> Env:
        return ToolEnv(
            task,
            self.dialect,
            self.asked_prompt(),
            self.tools,
            retriever=self.retriever,
            calls=EpisodeCalls(task, key, self.record),
            frame=self.frame(),
            own=None if self.make is None else OwnObject(task, self.make),
        )

    def asked_prompt(self) -> str:
        """The prompt with the schemas of the tools, one a line."""
        schemas = [tool.schema["function"] for tool in self.tools.values()]
        schemas += [SEARCH_SCHEMA["function"]] if self.retriever is not None else []
        shown = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
        return Setting.asked_prompt(self).replace(TOOLS, shown)

    def for_step(self, played: Callable[[], Mapping[int, Group]]) -> ToolSetting:
        """The setting with a record of the results that the groups `played` before got."""
        return replace(self, record=CallRecord(played()))


def tool_setting(env: ToolEnvRecipe, tokenizer: PreTrainedTokenizerFast | None, tasks: Sequence[Task]) -> ToolSetting:
    """The user's tools, the prompt, and the index if there is one. Raises UserCodeError if a function is no tool, and
    SleuthError for a server without its tools or two tools of one name."""
    classes = [one for name in env.functions() if isinstance((one := load_function(name, env.files)).call, type)]
    if len(classes) > 1:
        names = ", ".join(one.name for one in classes)
        raise SleuthError(f"tools has several classes, {names}: an episode has one object; name one of them")
    made = [tool for named in env.tools for tool in _tools_of(named, env)]
    index = open_index(env.index) if env.index is not None else None
    names = [tool.name for tool in made] + ([SEARCH] if index is not None else [])
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SleuthError(f"tools has {twice} twice; the policy could call only one of them")
    dialect = replace(
        TOOLS_TEXT if env.prompt_role == "raw" else TOOLS_CHAT,
        top_k=env.top_k,
        searches=env.calls,
        turn_tokens=env.turn_tokens,
        results_tokens=env.result_tokens,
    )
    schemas = [tool.schema for tool in made] + ([SEARCH_SCHEMA] if index is not None else [])
    return ToolSetting(
        **asked_by(env, env.prompt, dialect, tokenizer, tasks, tools=schemas),
        corpus_sha256=index.card.corpus_sha256 if index is not None else None,
        retriever_identity=index.card.retriever if index is not None else None,
        own_code=env_code_in(env),
        tools={tool.name: tool for tool in made},
        retriever=index,
        make=Caller(classes[0], seconds=env.seconds, delays_engine=True, at_once=THREADS) if classes else None,
    )


def _tools_of(named: str | ToolTableRecipe, env: ToolEnvRecipe) -> list[FunctionTool | ServerTool]:
    table = ToolTableRecipe(function=named) if isinstance(named, str) else named
    if table.function is not None:
        function = load_function(table.function, env.files)
        is_class = isinstance(function.call, type)
        owner = _class_of(function)
        if has := [one for one in NOT_TOOLS if owner is not None and hasattr(owner.call, one)]:
            raise function.error(f"its class has {has[0]}, which has an effect only if tools names the class itself")
        names = [f"{table.function}.{name}" for name in tool_names(function)] if is_class else [table.function]
        functions = [load_function(name, env.files) for name in names]
        return [FunctionTool(one, seconds=env.seconds, shared=table.shared) for one in functions]
    server = tool_server(table.mcp or "", table.folder)
    if not table.shared:
        server.say_what_is_shared()
    return [ServerTool(server, tool, seconds=env.seconds, shared=table.shared) for tool in server.offered(table.only)]
