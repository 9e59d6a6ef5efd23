"""The ways to a server of the Model Context Protocol: stdin and stdout of this process, or a route over HTTP."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from threading import Thread
from typing import IO, TYPE_CHECKING, Any, cast

from starlette.routing import Route

from sleuth.serve.retriever.index_loader import IndexLoader
from sleuth.serve.retriever.mcp_tools import mcp_server
from sleuth.serve.retriever.search_handler import RequestHandler
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

MCP_PATH = "/mcp"
MESSAGE_BYTES = 2**20
"""The longest message that is read; a call with the longest query takes a tenth of it."""
WAITING_LINES = 16
"""Lines of stdin that are read ahead."""


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


@contextmanager
def protocol_stdout() -> Iterator[IO[str]]:
    """Yields stdout for the messages of a protocol. Meanwhile whatever else this process prints, also from compiled
    libraries, goes to stderr."""
    stdout = os.dup(1)
    os.dup2(2, 1)
    stream = open(stdout, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - it is closed below
    try:
        yield stream
    finally:
        with suppress(BrokenPipeError):  # the reader has closed the pipe
            stream.close()
        os.dup2(stdout, 1)
        os.close(stdout)


async def serve_stdio(server: Server, loader: IndexLoader, stdout: IO[str]) -> None:
    """Starts `loader`, and serves one client over stdin and `stdout` until stdin ends or stdout is closed. Raises
    SleuthError if the index cannot be opened."""
    import anyio
    from mcp.server.stdio import stdio_server

    loop, serving = asyncio.get_running_loop(), asyncio.current_task()
    assert serving is not None

    def end() -> None:
        loop.call_soon_threadsafe(serving.cancel)

    loader.start(failed=end)
    try:
        try:
            async with stdio_server(cast(Any, _StdinLines()), anyio.wrap_file(stdout)) as (read, write):
                await server.run(read, write, server.create_initialization_options())
        except* BrokenPipeError:
            pass  # the client has ended
    except asyncio.CancelledError:
        if not loader.error:
            raise
    if loader.error:
        raise SleuthError(loader.error)


class _StdinLines:
    """The lines of stdin, read by a thread that ends with the process: Ctrl-C need not wait for a line."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[bytes] = asyncio.Queue(WAITING_LINES)
        loop = asyncio.get_running_loop()
        Thread(target=self._read, args=(loop,), name="stdin", daemon=True).start()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        stream = open(0, "rb", closefd=False)  # noqa: SIM115 - of this thread: sys.stdin would be locked at the end
        is_rest = False  # of a line that is too long: only its first part is passed on, which fails to parse
        with suppress(RuntimeError, asyncio.CancelledError):  # the loop has ended, and the process will
            while line := stream.readline(MESSAGE_BYTES):
                if not is_rest:
                    asyncio.run_coroutine_threadsafe(self._lines.put(line), loop).result()
                is_rest = not line.endswith(b"\n")
            asyncio.run_coroutine_threadsafe(self._lines.put(b""), loop).result()

    def __aiter__(self) -> _StdinLines:
        return self

    async def __anext__(self) -> bytes:
        line = await self._lines.get()
        if not line:
            raise StopAsyncIteration
        return line
