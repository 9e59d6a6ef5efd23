"""One HTTP connection of a server, with bounds on its head.

uvicorn's parser takes a head of any size and waits for it for ever; bodies are bounded by `access.receive_body`.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 32 * 1024
"""Of a request line and its headers together, and of the trailers of a body."""
HEADERS = 100
"""Number of headers."""
HEAD_SECONDS = 10.0
"""For a head to arrive, from the connection or from its first byte."""


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's connection, which answers 431 to a head that is too large and 408 to one that takes too long."""

    _in_head = False
    _advanced = False
    """Whether the chunk that is parsed ended a head, held a body or ended a message."""
    _pending = 0
    """Bytes of the chunks since the last one that did."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._advanced = False
        super().data_received(data)
        if self.transport.is_closing():
            return
        self._pending = 0 if self._advanced else self._pending + len(data)
        if self._pending > HEAD_BYTES:
            return self._refuse(431, f"the head of the request is larger than {HEAD_BYTES:,} bytes")
        if self._timer is None and (self._in_head or self.cycle is None or self.cycle.response_complete):
            self._timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._in_head, self._advanced = False, True
        self._stop_timer()
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > HEAD_BYTES:
            self._refuse(431, f"the head of the request is larger than {HEAD_BYTES:,} bytes")
            raise ValueError(HEAD_BYTES)
        if len(self.headers) > HEADERS:
            self._refuse(431, f"the request has more than {HEADERS} headers")
            raise ValueError(HEADERS)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._advanced = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._advanced = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's answer to what is no HTTP, unless a bound has ended the parser."""
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def _head_is_late(self) -> None:
        self._timer = None
        if self._in_head or self.cycle is None or self.cycle.response_complete:
            self._refuse(408, f"the head of the request did not arrive within {HEAD_SECONDS:g} seconds")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: int, line: str) -> None:
        """Answers one line, unless an earlier answer is under way, and closes the connection."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            phrase, body = HTTPStatus(status).phrase, f"{line}\n".encode()
            head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()
