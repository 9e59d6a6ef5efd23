"""An index as two tools of the Model Context Protocol over HTTP: `search` finds passages, `open` returns a whole one.

A result is text for a model, and the same as an object for programs. What is wrong with a call is an error result of
one line, which a model can read and correct.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Route

from sleuth import __version__
from sleuth.host.escapes import replace_surrogates
from sleuth.serve.refused import as_integer, problem_line
from sleuth.serve.search_handler import MAX_QUERY_CHARACTERS, TOP_K, RequestHandler
from sleuth.types import Passage, SleuthError

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp.types import CallToolResult

MCP_PATH = "/mcp"
MESSAGE_BYTES = 2**20
"""The longest message that is read; a call with the longest query takes a tenth of it."""
MAX_K = 20
FOUND_CHARACTERS = 2_000
"""Of each passage that `search` returns; `open` returns the rest."""
OPENED_CHARACTERS = 100_000
TITLE_CHARACTERS = 300
MAX_ID_CHARACTERS = 1_000
SHOWN_CHARACTERS = 100
"""Of a wrong argument, in an error."""
INSTALL = "a server of the Model Context Protocol needs the package mcp: pip install 'sleuth[mcp]'"


class Search(BaseModel):
    """Searches a corpus and returns the best passages, each with its title, id and text."""

    model_config = ConfigDict(extra="forbid")

    query: Annotated[
        str,
        Field(max_length=MAX_QUERY_CHARACTERS, strict=True, description="What to look for, in words."),
        BeforeValidator(replace_surrogates),
    ]
    k: Annotated[
        int, Field(ge=1, le=MAX_K, strict=True, description="How many passages."), BeforeValidator(as_integer)
    ] = TOP_K


class Open(BaseModel):
    """Returns the whole text of a passage that a search has found."""

    model_config = ConfigDict(extra="forbid")

    id: Annotated[
        str,
        Field(max_length=MAX_ID_CHARACTERS, strict=True, description="The id of the passage."),
        BeforeValidator(replace_surrogates),
    ]


class FoundPassage(BaseModel):
    """A passage; `cut` counts the characters that its text lacks."""

    id: str
    title: str
    text: str
    cut: int = 0


class ScoredPassage(FoundPassage):
    """A passage and how well it fits the query, by the index."""

    score: float


class FoundPassages(BaseModel):
    """The passages of a search, best first."""

    passages: list[ScoredPassage]


class ToolCallError(Exception):
    """What is wrong with a call, in one line."""


def mcp_server(handler: RequestHandler) -> Server:
    """The server of both tools. Raises SleuthError if the package mcp is missing."""
    try:
        from mcp.server.lowlevel import Server
        from mcp.types import CallToolResult, TextContent, Tool
    except ModuleNotFoundError:
        raise SleuthError(INSTALL) from None
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it logs tracebacks of errors that clients get as results
    server: Server = Server("sleuth-retriever", version=__version__)
    tools = [
        Tool(
            name="search", description=Search.__doc__, inputSchema=_schema(Search), outputSchema=_schema(FoundPassages)
        ),
        Tool(name="open", description=Open.__doc__, inputSchema=_schema(Open), outputSchema=_schema(FoundPassage)),
    ]

    @server.list_tools()
    async def list_tools() -> list[Tool]:
        return tools

    @server.call_tool(validate_input=False)  # its errors repeat the whole argument
    async def call_tool(name: str, arguments: Mapping[str, Any]) -> CallToolResult:
        try:
            text, fields = await _call(handler, name, arguments)
        except ToolCallError as error:
            return CallToolResult(content=[TextContent(type="text", text=str(error))], isError=True)
        return CallToolResult(content=[TextContent(type="text", text=text)], structuredContent=fields.model_dump())

    return server


async def _call(handler: RequestHandler, name: str, arguments: Mapping[str, Any]) -> tuple[str, BaseModel]:
    """The result of a call, as text and as an object. Raises ToolCallError."""
    if name not in CALLS:
        raise ToolCallError(f"there is no tool {name[:SHOWN_CHARACTERS]!r}; there are {', '.join(CALLS)}")
    shape, answer = CALLS[name]
    try:
        checked = shape.model_validate(arguments)
    except ValidationError as error:
        raise ToolCallError(_first_problem(error)) from None
    try:
        await handler.wait_for_index()
        return await answer(handler, checked)
    except HTTPException as error:
        raise ToolCallError(error.detail) from None


def _first_problem(error: ValidationError) -> str:
    """`k: Input should be less than or equal to 20`."""
    line = problem_line(error.errors(include_input=False, include_url=False)[0], unnamed=())
    return line if len(line) <= 2 * SHOWN_CHARACTERS else line[:SHOWN_CHARACTERS] + "..."


async def _search(handler: RequestHandler, call: Search) -> tuple[str, FoundPassages]:
    if not call.query.strip():
        raise ToolCallError("query: is empty; write what to look for, in words")
    [passages] = await handler.search([call.query], call.k)
    found = [ScoredPassage(**_fields(passage, FOUND_CHARACTERS), score=passage.score) for passage in passages]
    return _as_text(found), FoundPassages(passages=found)


async def _open(handler: RequestHandler, call: Open) -> tuple[str, FoundPassage]:
    passage = await handler.passage(call.id)
    if passage is None:
        shown = call.id[:SHOWN_CHARACTERS]
        raise ToolCallError(f"id: there is no passage {shown!r}; take an id from the results of a search")
    opened = FoundPassage(**_fields(passage, OPENED_CHARACTERS))
    end = f"\n[{opened.cut:,} more characters]" if opened.cut else ""
    return f"{_heading(opened)}\n{opened.text}{end}", opened


CALLS: dict[str, tuple[type[BaseModel], Callable[[RequestHandler, Any], Awaitable[tuple[str, BaseModel]]]]] = {
    "search": (Search, _search),
    "open": (Open, _open),
}
"""The arguments and the function of each tool."""


def _fields(passage: Passage, characters: int) -> dict[str, Any]:
    return {
        "id": passage.id,
        "title": passage.title[:TITLE_CHARACTERS],
        "text": passage.text[:characters],
        "cut": max(0, len(passage.text) - characters),
    }


def _as_text(found: Sequence[FoundPassage]) -> str:
    """`[1] Ada Voss (id 17)`, a line break and the text, for each passage."""
    parts = []
    for rank, passage in enumerate(found, start=1):
        end = f" [{passage.cut:,} more characters: open {passage.id}]" if passage.cut else ""
        parts.append(f"[{rank}] {_heading(passage)}\n{passage.text}{end}")
    return "\n\n".join(parts) or "nothing found"


def _heading(passage: FoundPassage) -> str:
    return f"{passage.title} (id {passage.id})".lstrip()


def _schema(shape: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema, without what a prompt that describes the tools should not spend tokens on: the description of
    the whole, which the tool has, and the titles that pydantic makes of the names."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(entry) for entry in value]
        if not isinstance(value, dict):
            return value
        return {key: plain(entry) for key, entry in value.items() if key != "title" or not isinstance(entry, str)}

    schema = shape.model_json_schema()
    del schema["description"]
    return plain(schema)


class McpRoute:
    """Streamable HTTP without sessions: each POST is one message, answered by JSON."""

    def __init__(self, handler: RequestHandler) -> None:
        """Raises SleuthError if the package mcp is missing."""
        server = mcp_server(handler)
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        self._manager = StreamableHTTPSessionManager(
            server, json_response=True, stateless=True, max_request_body_size=MESSAGE_BYTES
        )
        self.route = Route(MCP_PATH, endpoint=self._manager.asgi_app, methods=["POST"])

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncIterator[None]:
        """The lifespan of the application that has the route."""
        async with self._manager.run():
            yield
