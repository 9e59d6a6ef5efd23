"""A real MCP server for tests: over stdin and stdout, or, with a port as its argument, over streamable HTTP."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from weakref import WeakKeyDictionary

from mcp.server.fastmcp import Context, FastMCP, Image

PORT = int(sys.argv[1]) if len(sys.argv) > 1 else None
server = FastMCP("numbers", port=PORT or 0, log_level="ERROR")


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def fails() -> str:
    """Fails."""
    raise ValueError("no such number")


@server.tool()
def variables() -> str:
    """Names variables of the environment."""
    return " ".join(sorted(os.environ))


@server.tool()
def picture() -> Image:
    """Returns a picture."""
    return Image(data=b"\x89PNG", format="png")


@server.tool()
def prints() -> str:
    """Writes to stdout, where only the protocol belongs."""
    os.write(1, b"noise\n")
    return "said"


@server.tool()
def ends() -> str:
    """Ends the server."""
    os._exit(3)


@server.tool()
def ends_once(marker: str) -> str:
    """Ends the server the first time."""
    if not Path(marker).exists():
        Path(marker).touch()
        os._exit(3)
    return f"back after {marker}"


@server.tool()
async def waits() -> str:
    """Waits for long."""
    await asyncio.sleep(60)
    return "late"


@server.tool()
def blocks() -> str:
    """Blocks the server."""
    time.sleep(60)
    return "late"


COUNTS = WeakKeyDictionary[object, int]()


@server.tool()
def counts(context: Context) -> int:
    """Counts the calls of a session."""
    COUNTS[context.session] = COUNTS.get(context.session, 0) + 1
    return COUNTS[context.session]


if __name__ == "__main__":
    server.run("stdio" if PORT is None else "streamable-http")
