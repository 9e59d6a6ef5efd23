"""Both servers over real sockets, and bytes sent to them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from listening import listening
from small_agents import agent

from sleuth.serve.access import LOOPBACK, Access, Limits, conversation_limits
from sleuth.serve.chat_app import chat_app
from sleuth.serve.retriever_app import retriever_app
from sleuth.serve.search_handler import IndexLoader

SERVERS = ("chat", "retriever")


@contextmanager
def served(kind: str, towns: Path, access: Access | None = None) -> Iterator[str]:
    """The address of a server that is ready."""
    access = access or Access(hosts=LOOPBACK)
    if kind == "chat":
        with listening(chat_app(agent(), conversation_limits(), conversations=4, access=access)) as url:
            yield url
    else:
        loader = IndexLoader(towns)
        loader.start()
        while loader.index is None:
            time.sleep(0.01)
        with listening(retriever_app(loader, Limits(), access), lifespan="off") as url:
            yield url


def connected(url: str) -> socket.socket:
    address = httpx.URL(url)
    return socket.create_connection((address.host, address.port), timeout=10)


def everything(client: socket.socket) -> bytes:
    """What the server sends until it closes."""
    received = b""
    try:
        while part := client.recv(65536):
            received += part
    except ConnectionError:
        pass
    return received
