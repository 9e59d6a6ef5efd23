"""A web application served at an address until the process is stopped."""

from __future__ import annotations

import gc
import socket
from typing import Any

from sleuth.types import SleuthError

STOP_SECONDS = 5
"""How long requests under way may take after the process was asked to stop."""


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one. Raises SleuthError where the address cannot be used."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        raise SleuthError(f"--host {host} --port {port}: cannot listen there ({error.strerror or error})") from None
    return listening


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
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
    )


def run(server: Any, listening: socket.socket) -> None:
    """Serves until the process is stopped."""
    gc.collect()
    gc.freeze()  # loaded objects stay; scanning them would halt every request for 50 ms
    server.run(sockets=[listening])
