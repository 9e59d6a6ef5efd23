"""`python -m benchmarks.pipelined CHECKPOINT INDEX RUN`: how long `/health` of each server takes while 100 connections
send requests behind each other, 256 KB each, and read no answer.

The bar is 0.5 s on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from contextlib import ExitStack, suppress
from threading import Event, Thread

import httpx

from benchmarks.served import served

CONNECTIONS, BYTES = 100, 2**18
SECONDS = 3.0
"""How long `/health` is asked from the first byte on."""


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
        slowest = []
        for _ in range(options.rounds):
            with served(*arguments) as (url, _):
                slowest.append(slowest_health(url))
        figures[arguments[0]] = round(1000 * min(slowest))
    print(json.dumps(figures | {"load_after": os.getloadavg()[0]}))


def slowest_health(
    url: str,
    *,
    connections: int = CONNECTIONS,
    size: int = BYTES,
    seconds: float = SECONDS,
) -> float:
    """The seconds of the slowest answer of `/health` while `connections` send `size` bytes of requests each and
    read no answer. Raises RuntimeError for an answer that is not 200."""
    address = httpx.URL(url)
    request = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    requests = request * (size // len(request))
    ended = Event()

    def send(client: socket.socket) -> None:
        with suppress(OSError):
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
