"""A web application served at an address until the process is stopped."""

from __future__ import annotations

import errno
import gc
import signal
import socket
from contextlib import suppress
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from sleuth.host.variables import KEY_VARIABLE, key_in
from sleuth.training.heavy import freeze_loaded
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.serve.access import Access

LOOPBACK = "127.0.0.1"
STOP_SECONDS = 5
"""How long requests under way may take after the process was asked to stop."""

Host = Annotated[str, Option(help="0.0.0.0 lets other machines connect; then a key is needed.")]
ApiKey = Annotated[
    str | None,
    Option(
        "--api-key",
        metavar="VARIABLE",
        help=f"Variable of the environment with the key that requests must carry. [default: {KEY_VARIABLE}, if set]",
    ),
]
Insecure = Annotated[bool, Option("--insecure", help="Let other machines connect without a key.")]


def access_of(host: str, *, api_key: str | None, insecure: bool) -> Access:
    """Who may ask a server at `host`. Raises SleuthError if other machines could without a key, unless `insecure`."""
    from sleuth.serve.access import Access, known_names

    key = key_in(api_key or KEY_VARIABLE)
    if api_key is not None and not key:
        raise SleuthError(
            "--api-key takes the name of a variable of the environment, so that the key is in no list of processes, "
            f"and there is none of that name: export {KEY_VARIABLE}=... and leave --api-key out"
        )
    hosts = known_names(host)
    if hosts is None and not key and not insecure:
        raise SleuthError(
            f"--host {host} lets other machines connect: export {KEY_VARIABLE}=... first, a key that their requests "
            "must carry, or say --insecure"
        )
    return Access(hosts=hosts, key=key)


def listen(host: str, port: int, options: str = "") -> socket.socket:
    """A bound socket; port 0 takes a free one. Raises SleuthError, with the `options` that named it, where the address
    cannot be used."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        instead = "; --port 0 takes a free one" if error.errno == errno.EADDRINUSE else ""
        options = options or f"--host {host} --port {port}"
        raise SleuthError(f"{options}: cannot listen there ({error.strerror or error}){instead}") from None
    return listening


def listen_here(port: int | None, first: int, count: int = 20) -> socket.socket:
    """A socket bound to a port of this machine alone; 0 is a free one. None: the first free one of `count` from
    `first`, else any. Raises SleuthError where a given port cannot be used."""
    for candidate in range(first, first + count) if port is None else ():
        with suppress(SleuthError):
            return listen(LOOPBACK, candidate)
    return listen(LOOPBACK, port or 0, f"--port {port or 0}")


def address_of(host: str, listening: socket.socket) -> str:
    """`http://127.0.0.1:8000`."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listening.getsockname()[1]}"


def server_of(app: Any) -> Any:
    """A uvicorn server of `app`."""
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            log_level="warning",
            access_log=False,
            use_colors=False,  # a terminal shows its escapes
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
    )


def run(server: Any, listening: socket.socket) -> None:
    """Serves until the process is stopped."""
    gc.collect()
    freeze_loaded()  # scanning them would halt every request for 50 ms
    if current_thread() is main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # uvicorn stops first and then lets it end the process
    server.run(sockets=[listening])
