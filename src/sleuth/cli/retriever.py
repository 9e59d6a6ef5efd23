"""`sleuth retriever`: serves an index over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sleuth.cli.http_server import (
    ApiKey,
    Host,
    Insecure,
    PerClient,
    access_of,
    address_of,
    listen,
    run,
    server_of,
)
from sleuth.types import SleuthError


def retriever(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An index.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    host: Host = "127.0.0.1",
    max_seconds: Annotated[
        float, typer.Option(min=0.001, help="Longest time of an answer; a larger index needs more.")
    ] = 60.0,
    api_key: ApiKey = None,
    insecure: Insecure = False,
    per_client: PerClient = None,
) -> None:
    """Serve an index over HTTP, for Sleuth and other trainers.

    In the dialects of Search-R1, slime, SkyRL and ReSearch: POST /retrieve, POST /batch_search; GET /health, /metrics,
    /openapi.json.
    """
    from sleuth.serve.http.limits import Limits
    from sleuth.serve.retriever.app import retriever_app
    from sleuth.serve.retriever.index_loader import IndexLoader

    opening = IndexLoader(folder)
    listening = listen(host, port)
    access = access_of(host, api_key=api_key, insecure=insecure, per_client=per_client)
    server = server_of(retriever_app(opening, Limits(seconds=max_seconds), access))
    opening.start(failed=lambda: setattr(server, "should_exit", True))
    address = address_of(host, listening)
    typer.echo(f"{folder}: {opening.card.count:,} passages, {opening.card.kind}, at {address}")
    typer.echo(f"Ready when {address}/health says so. Search-R1, slime, SkyRL: {address}/retrieve")
    run(server, listening)
    if opening.error:
        raise SleuthError(opening.error)
