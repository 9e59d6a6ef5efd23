"""`python -m benchmarks.pipelined CHECKPOINT INDEX RUN`: how long `/health` of each server takes while 100 connections
send requests behind each other, 256 KB each, and read no answer.

Beside that the same with connections that are reset instead. The bar is 0.5 s on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from threading import Event, Thread

import httpx

from benchmarks.served import served

CONNECTIONS, BYTES = 100, 2**18
SECONDS = 3.0
"""How long `/health` is asked from the first byte on."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that closes with a reset."""


def main() -> None:
    """Print one JSON object: the slowest `/health` of each server in ms, the least over the rounds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipelined", description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("index")
    parser.add_argument("run")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    servers = (("serve", options.checkpoint, "--index", options.index), ("retriever", options.index))
    figures: dict[str, object] = {"load_before": os.getloadavg()[0]}
    for arguments in (*servers, ("watch", options.run)):
        slowest: dict[str, list[float]] = {"unread": [], "reset": []}
        for _ in range(options.rounds):
            with served(*arguments) as (url, _):
                slowest["unread"].append(slowest_health(url))
            with served(*arguments) as (url, _):
                slowest["reset"].append(slowest_health(url, connections=4 * CONNECTIONS, size=2**12, reset=True))
        figures[arguments[0]] = {kind: round(1000 * min(seconds)) for kind, seconds in slowest.items()}
    print(json.dumps(figures | {"load_after": os.getloadavg()[0]}))


def slowest_health(
    url: str,
    *,
    connections: int = CONNECTIONS,
    size: int = BYTES,
    reset: bool = False,
    seconds: float = SECONDS,
    paths: Sequence[str] = ("/health",),
) -> float:
    """The seconds of the slowest answer of `/health` while `connections` send `size` bytes of requests each. Those that
    have sent theirs are left open, or are reset and opened again. Raises RuntimeError for an answer that is not 200."""
    address = httpx.URL(url)
    lines = [f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode() for path in paths]
    requests = b"".join(lines) * (size // len(b"".join(lines)))
    ended = Event()

    def send(client: socket.socket) -> None:
        with suppress(OSError):
            client.sendall(requests)
        while reset and not ended.is_set():
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.close()
            with suppress(OSError):
                client = socket.create_connection((address.host, address.port), timeout=5)
                client.sendall(requests)
        ended.wait()
        client.close()

    with ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_connection((address.host, address.port), timeout=30))
            for _ in range(connections)
        ]
        senders = [Thread(target=send, args=(client,), daemon=True) for client in opened]
        try:
            for sender in senders:
                sender.start()
            return _slowest(url, seconds)
        finally:
            ended.set()
            for sender in senders:
                sender.join()


def _slowest(url: str, seconds: float) -> float:
    slowest, began = 0.0, time.perf_counter()
    while (asked := time.perf_counter()) - began < seconds:
        with httpx.Client(trust_env=False, timeout=60) as client:
            answer = client.get(f"{url}/health")
        slowest = max(slowest, time.perf_counter() - asked)
        if not answer.is_success:
            raise RuntimeError(f"/health answered {answer.status_code}: {answer.text}")
        time.sleep(0.005)
    return slowest


if __name__ == "__main__":
    main()
