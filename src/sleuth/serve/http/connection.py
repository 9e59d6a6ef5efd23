"""One HTTP connection of a server, with bounds on its head, on requests that wait behind each other, and on a client
that does not read.

uvicorn's parser takes a head of any size and waits for it for ever, and it parses thousands of requests at once while
all other connections wait; bodies are bounded by `limits.receive_body`.
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
AHEAD = 8
"""Requests of one connection that may wait behind the one that is answered. With further ones it is closed after the
answers to these, so that a few clients cannot keep the server to themselves."""
UNREAD_SECONDS = 60.0
"""How long a client may leave an answer unread while it blocks the sending of more."""


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's connection, which answers 431 to a head that is too large and 408 to one that takes too long, ends if
    its answer is not read, and reads no more than a few requests ahead."""

    _full = False
    """Whether more requests came than are read ahead: those that were read are answered, then it is closed."""
    _in_head = False
    _in_body = False
    _begins = False
    """Whether a request began in the chunk that is parsed."""
    _unparsed = 0
    """Bytes received of a head that began in an earlier chunk, or of trailers."""
    _head_bytes = 0
    """Bytes of the URL and the finished headers."""
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _saw_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._full:
            return self.flow.pause_reading()
        began_earlier, self._saw_body, self._begins = self._in_head or self._in_body, False, False
        super().data_received(data)
        if self.transport.is_closing() or self._full:
            return
        if self._in_head or (self._in_body and not self._saw_body):
            self._unparsed += len(data) if began_earlier and not self._begins else 0
            if self._head_bytes + self._unparsed > HEAD_BYTES:
                return self._refuse(431, f"the head of the request is larger than {HEAD_BYTES:,} bytes")
        idle = not self._in_head and not self._in_body
        waits = idle and (self.cycle is None or self.cycle.response_complete) and self.timeout_keep_alive_task is None
        if (self._in_head or waits) and self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= AHEAD:
            self._full, self.cycle.keep_alive = True, False  # the newest request is the last
            raise ValueError(AHEAD)  # ends the parser: what follows in this chunk is not looked at
        super().on_message_begin()
        self._in_head, self._in_body, self._unparsed, self._head_bytes, self._begins = True, False, 0, 0, True

    def on_url(self, url: bytes) -> None:
        self._add_to_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._add_to_head(len(name) + len(value))
        if len(self.headers) >= HEADERS:
            self._refuse(431, f"the request has more than {HEADERS} headers")
            raise ValueError(HEADERS)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body, self._unparsed = False, True, 0
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._saw_body, self._unparsed = True, 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's answer to what is no HTTP, unless a bound has ended the parser."""
        if not self._full and not self.transport.is_closing():
            super().send_400_response(msg)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def _add_to_head(self, count: int) -> None:
        """Raises ValueError, which ends the parser, if the head becomes too large."""
        self._head_bytes += count
        if self._head_bytes > HEAD_BYTES:
            self._refuse(431, f"the head of the request is larger than {HEAD_BYTES:,} bytes")
            raise ValueError(HEAD_BYTES)

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
