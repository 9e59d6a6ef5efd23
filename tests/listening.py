"""Applications behind a real socket."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Literal

from starlette.types import ASGIApp

from sleuth.cli.http_server import server_of


@contextmanager
def listening(app: ASGIApp, lifespan: Literal["on", "off"] = "on") -> Iterator[str]:
    """The address of an application, served in a thread."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server = server_of(app)
        server.config.lifespan, server.config.timeout_graceful_shutdown = lifespan, 2
        thread = Thread(target=server.run, kwargs={"sockets": [free]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{free.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(60)
        assert not thread.is_alive()
