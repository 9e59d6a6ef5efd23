"""Tools of a server that speaks the Model Context Protocol (MCP): a command starts it, or a URL names it."""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import json
import logging
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import finalize

from sleuth.episodes.calls import ERROR, EpisodeCalls
from sleuth.host.connections import key_headers
from sleuth.host.threads import to_stderr
from sleuth.own.calls import background_loop, delaying_engine
from sleuth.own.commands import command_environment, command_words
from sleuth.own.permission import CODE
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from mcp import ClientSession, Tool
    from mcp.types import CallToolResult

START_SECONDS = 30.0
"""Time limit for a server to start and list its tools."""
PING_SECONDS = 5.0
"""A server that does not answer a ping in this time is lost."""
END_SECONDS = 5.0
"""Time limit for the servers that this process started to end with it."""
INSTALL = "tools of MCP servers need the package mcp: pip install 'sleuth[mcp]'"


class ToolServerFailed(Exception):  # noqa: N818
    """A server of tools is gone and cannot be started or reached again. The episode's score is then missing."""


class ToolServer:
    """A session of a server of tools. It is started, or connected to, at its first use.

    `address` is a command, which runs in `folder` and talks over stdin and stdout (`python` is the Python of this
    process), or the URL of a server that speaks streamable HTTP. A server that is lost is started again, once a call;
    but a session `of_episode` fails when the server may have forgotten earlier calls. Raises CodeRefusedError for a
    command that may not run here.
    """

    def __init__(self, address: str, folder: Path | None = None, *, of_episode: bool = False) -> None:
        self.address = address
        self.folder = folder
        self.of_episode = of_episode
        if not self.has_sessions:
            CODE.announce(f"starts {address}" + (f" in {folder}" if folder is not None else ""))
        self._session_id: Callable[[], str | None] = lambda: None
        self._remembers = False
        self.listed: list[Tool] = []
        self._session: ClientSession | None = None
        self._connection: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._warned = False
        self._said = False

    @property
    def has_sessions(self) -> bool:
        """Whether several sessions of one process can be opened: those of a command would each be a process."""
        return self.address.startswith(("http://", "https://"))

    def say_what_is_shared(self) -> None:
        """Prints once that episodes share the server, if they cannot have sessions of their own."""
        if not self.has_sessions and not self._said:
            self._said = True
            to_stderr(
                f"{self.address}: one process of this tool server serves all episodes, which share what it remembers: "
                "set shared = true if it remembers nothing, or serve it at a URL: each episode has a session of its own"
            )

    def offered(self, only: Sequence[str]) -> list[Tool]:
        """Its tools with these names; all of them if `only` is empty. Raises SleuthError if it lacks one."""
        names = [tool.name for tool in self.listed]
        if absent := next((name for name in only if name not in names), None):
            raise SleuthError(f"{self.address}: the tool server has no tool {absent!r}; it has {', '.join(names)}")
        return [tool for tool in self.listed if tool.name in (only or names)]

    async def open(self) -> None:
        """Starts the server if it does not run, and lists its tools. Raises ToolServerFailed."""
        async with self._connecting:
            if self._session is not None:
                return
            opened = asyncio.get_running_loop().create_future()
            self._connection = asyncio.create_task(self._connect(opened))
            try:
                await asyncio.wait_for(opened, START_SECONDS)
            except TimeoutError:
                self._connection.cancel()
                raise self._failed(f"did not list its tools within {START_SECONDS:g} seconds") from None

    async def call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> CallToolResult | str:
        """The result of a tool, or the reason why the call failed. Raises ToolServerFailed if the server cannot be
        started again, or ends twice during this call."""
        from mcp import McpError

        reason = ""
        for _ in range(2):
            await self.open()
            session = cast("ClientSession", self._session)
            try:
                result = await session.call_tool(name, dict(arguments), timedelta(seconds=seconds))
                self._remembers = self.of_episode and self._session_id() is not None
                return result
            except Exception as error:  # of the SDK, of its streams, or of its validation
                reason = str(_first(error)) or type(error).__name__
                late = isinstance(error, McpError) and error.error.code == HTTPStatus.REQUEST_TIMEOUT
            if not await _answers(session):
                if self._session is session:  # else another call has closed it, and may have opened the next
                    await self.close()
                if self._remembers:
                    raise self._failed(f"lost the session of an episode at a call of {name}: {reason}")
                if not late:
                    continue
                await self.open()  # the call has blocked the server; the next one finds a new server
            return f"did not return within {seconds:g} seconds" if late else reason
        raise self._failed(f"ended twice during a call of {name}: {reason}")

    async def close(self) -> None:
        """Ends the connection and, if a command started the server, the server."""
        connection, self._connection, self._session = self._connection, None, None
        if connection is not None:
            connection.cancel()
            await asyncio.wait([connection], timeout=END_SECONDS)

    async def _connect(self, opened: asyncio.Future[None]) -> None:
        """Keeps the connection until it is lost or this task is cancelled: the SDK wants one task for both ends."""
        from mcp import ClientSession

        try:
            async with (
                self._streams() as (read, write),
                ClientSession(read, write, message_handler=self._on_message) as session,
            ):
                await session.initialize()
                if not self.of_episode:
                    self.listed = await _tools_of(session)
                self._session = session
                opened.set_result(None)
                await asyncio.Event().wait()
        except Exception as error:
            if not opened.done():
                opened.set_exception(self._failed(_reason(_first(error))))
        finally:
            if self._connection is asyncio.current_task():
                self._session = None

    async def _on_message(self, message: object) -> None:
        """Called for notifications, and with an exception for a line that the SDK could not parse."""
        if isinstance(message, Exception) and not self._warned:
            self._warned = True
            to_stderr(f"{self.address}: the tool server prints other text than messages to stdout; let it use stderr")

    @asynccontextmanager
    async def _streams(self) -> AsyncIterator[tuple[Any, Any]]:
        import httpx
        from mcp import StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client

        async def answer_calls_only(request: httpx.Request) -> None:
            if request.method == "GET" and "last-event-id" not in request.headers:
                raise httpx.RequestError("an episode's session needs no stream for what a server sends unasked")

        if self.has_sessions:
            hooks = {"request": [answer_calls_only]} if self.of_episode else {}
            async with (
                # `call` and `open` limit the time
                httpx.AsyncClient(headers=key_headers(), timeout=None, event_hooks=hooks) as client,
                streamable_http_client(self.address, http_client=client) as (read, write, session_id),
            ):
                self._session_id = session_id
                yield read, write
            return
        program, *arguments = command_words(self.address)
        started = StdioServerParameters(command=program, args=arguments, env=command_environment(), cwd=self.folder)
        async with stdio_client(started, errlog=cast(Any, sys.__stderr__)) as (read, write):
            yield read, write

    def _failed(self, reason: str) -> ToolServerFailed:
        return ToolServerFailed(f"{self.address}: the tool server {reason}")


class ServerTool:
    """A tool of a server. `schema` is its OpenAI schema, as the server describes it. Each episode has a session of its
    own, unless it is `shared` or the server has only one."""

    def __init__(self, server: ToolServer, tool: Tool, *, seconds: float, shared: bool = False) -> None:
        self.server = server
        self.shared = shared
        self.name = tool.name
        self.seconds = seconds
        function = {"name": tool.name, "description": tool.description or "", "parameters": tool.inputSchema}
        self.schema = {"type": "function", "function": function}

    async def __call__(self, arguments: Mapping[str, Any], episode: EpisodeCalls) -> str:
        """The text of the result, or the reason why the call failed, after `error: ` and the name of the tool. Raises
        ToolServerFailed."""
        with delaying_engine():
            made = self._session(episode).call(self.name, arguments, self.seconds)
            result = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(made, _loop()))
        if isinstance(result, str):
            return f"{ERROR}{self.name}: {result}"
        text = "\n".join(block.text if block.type == "text" else f"[{block.type}]" for block in result.content)
        return f"{ERROR}{self.name}: {text}" if result.isError else text

    def _session(self, episode: EpisodeCalls) -> ToolServer:
        server = self.server
        if self.shared or not server.has_sessions:
            return server
        if server not in episode.objects:
            opened = ToolServer(server.address, server.folder, of_episode=True)
            finalize(episode, _close_later, opened).atexit = False
            episode.objects[server] = opened
        return episode.objects[server]


def _close_later(server: ToolServer) -> None:
    asyncio.run_coroutine_threadsafe(server.close(), _loop())


def tools_sha256(tools: Sequence[Tool]) -> str:
    """The hash of what the policy can see of tools: their names, descriptions and schemas."""
    seen = [tool.model_dump(mode="json", include={"name", "description", "inputSchema"}) for tool in tools]
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()


@cache
def tool_server(address: str, folder: Path | None = None) -> ToolServer:
    """The server of this process at an address, with its tools listed. Raises SleuthError if it has none, or cannot be
    started or reached."""
    server = ToolServer(address, folder)
    try:
        import mcp  # noqa: F401
    except ModuleNotFoundError:
        raise SleuthError(INSTALL) from None
    try:
        asyncio.run_coroutine_threadsafe(server.open(), _loop()).result()
    except ToolServerFailed as error:
        raise SleuthError(str(error)) from None
    _SERVERS.append(server)
    if not server.listed:
        raise SleuthError(f"{address}: the tool server lists no tools")
    return server


_SERVERS: list[ToolServer] = []


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """A loop of its own, which no function of the user's can block."""
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it logs tracebacks; the errors are raised here
    loop = background_loop("tool servers")
    atexit.register(_close_all, loop)
    return loop


def _close_all(loop: asyncio.AbstractEventLoop) -> None:
    async def close() -> None:
        await asyncio.gather(*(server.close() for server in _SERVERS))

    with suppress(Exception):  # the process ends either way
        asyncio.run_coroutine_threadsafe(close(), loop).result(END_SECONDS)


async def _tools_of(session: ClientSession) -> list[Tool]:
    from mcp.types import PaginatedRequestParams

    page = await session.list_tools()
    tools = [*page.tools]
    while page.nextCursor:
        page = await session.list_tools(params=PaginatedRequestParams(cursor=page.nextCursor))
        tools += page.tools
    return tools


async def _answers(session: ClientSession) -> bool:
    with suppress(Exception):
        await asyncio.wait_for(session.send_ping(), PING_SECONDS)
        return True
    return False


def _first(error: BaseException) -> BaseException:
    """The first error of a group, as the SDK's task groups raise them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _reason(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError | PermissionError):
        return f"cannot be started: {error.strerror}"
    broken = type(error).__name__ in ("BrokenResourceError", "ClosedResourceError")  # anyio's, at a write
    if broken or isinstance(error, BrokenPipeError) or str(error) == "Connection closed":
        return "ended before it listed its tools"
    return f"failed: {str(error).partition(chr(10))[0] or type(error).__name__}"  # httpx adds a line with a link
