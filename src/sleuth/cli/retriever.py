"""`sleuth retriever`: serves an index over HTTP, or to one client of the Model Context Protocol."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sleuth.cli.http_server import ApiKey, Host, Insecure, PerClient, access_of, address_of, listen, run, server_of
from sleuth.terminal.inputs import require_unset
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.serve.access import Limits
    from sleuth.serve.search_handler import IndexLoader

LOOPBACK = "127.0.0.1"
PORT = 8000


def retriever(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An index.")],
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help=f"0 takes a free one. [default: {PORT}]", show_default=False)
    ] = None,
    host: Host = LOOPBACK,
    mcp: Annotated[
        bool, typer.Option("--mcp", help="Tools for clients of MCP: over stdin and stdout or, with --port, HTTP.")
    ] = False,
    max_seconds: Annotated[
        float, typer.Option(min=0.001, help="Longest time of an answer; a larger index needs more.")
    ] = 60.0,
    device: Annotated[
        Literal["cpu", "cuda"], typer.Option(help="Where flat vectors are searched: cuda splits them over all cards.")
    ] = "cpu",
    api_key: ApiKey = None,
    insecure: Insecure = False,
    per_client: PerClient = None,
) -> None:
    """Serve an index over HTTP, for Sleuth and other trainers.

    In the dialects of Search-R1, slime, SkyRL and ReSearch: POST /retrieve, POST /batch_search; GET /health, /metrics.
    With --mcp the tools search(query, k) and open(id) for agents, at /mcp if over HTTP.
    """
    from sleuth.serve.access import Limits
    from sleuth.serve.search_handler import IndexLoader

    limits = Limits(seconds=max_seconds)
    if mcp and port is None:
        of_http = {"--host": None if host == LOOPBACK else host, "--api-key": api_key, "--per-client": per_client}
        require_unset(of_http | {"--insecure": insecure or None}, "is for HTTP, and --mcp serves stdin; add --port")
        return _serve_stdio(IndexLoader(folder, device), limits)

    from sleuth.serve.retriever_app import retriever_app

    opening = IndexLoader(folder, device)
    listening = listen(host, PORT if port is None else port)
    access = access_of(host, api_key=api_key, insecure=insecure, per_client=per_client)
    server = server_of(retriever_app(opening, limits, access, mcp=mcp))
    opening.start(failed=lambda: setattr(server, "should_exit", True))
    address = address_of(host, listening)
    typer.echo(f"{folder}: {opening.card.count:,} passages, {opening.card.kind}, at {address}")
    typer.echo(f"Ready when {address}/health says so. Search-R1, slime, SkyRL: {address}/retrieve")
    if mcp:
        typer.echo(f"Clients of MCP: {address}/mcp")
    run(server, listening)
    if opening.error:
        raise SleuthError(opening.error)


def _serve_stdio(opening: IndexLoader, limits: Limits) -> None:
    from sleuth.serve.mcp_server import mcp_server, protocol_stdout, serve_stdio
    from sleuth.serve.search_handler import RequestHandler

    server = mcp_server(RequestHandler(opening, limits))
    with protocol_stdout() as stdout:
        asyncio.run(serve_stdio(server, opening, stdout))
