"""`sleuth retriever`: an index for trainers elsewhere."""

from __future__ import annotations

import gc
import socket
from pathlib import Path
from typing import Annotated

import typer

from sleuth.types import SleuthError

STOP_SECONDS = 5  # for the requests under way when it is told to stop


def retriever(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An index.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="0.0.0.0 lets other machines ask.")] = "127.0.0.1",
    max_seconds: Annotated[float, typer.Option(min=0.001, help="For one answer; a larger index needs more.")] = 60.0,
) -> None:
    """Serve an index over HTTP, in the dialects of Search-R1, slime, SkyRL and ReSearch.

    POST /retrieve, POST /batch_search; GET /health, /metrics, /openapi.json.
    """
    import uvicorn

    from sleuth.serve.opening import Opening
    from sleuth.serve.retriever_app import retriever_app
    from sleuth.serve.wire import Limits

    opening = Opening(folder)
    listening = _listen(host, port)
    app = retriever_app(opening, Limits(seconds=max_seconds))
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
    )
    opening.start(failed=lambda: setattr(server, "should_exit", True))
    address = f"http://{host}:{listening.getsockname()[1]}"
    typer.echo(f"{folder}: {opening.card.count:,} passages, {opening.card.kind}, at {address}")
    typer.echo(f"Ready when {address}/health says so. Search-R1, slime, SkyRL: {address}/retrieve")
    gc.collect()
    gc.freeze()  # what is loaded by now stays: a look through all of it would halt every request for 50 ms
    server.run(sockets=[listening])
    if opening.error:
        raise SleuthError(opening.error)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        raise SleuthError(f"--host {host} --port {port}: cannot listen there ({error.strerror or error})") from None
    return listening
