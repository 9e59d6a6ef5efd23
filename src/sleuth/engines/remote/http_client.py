"""HTTP requests to one server, with errors by whether the request may be repeated."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from sleuth.host.connections import RequestFailedError, UnreachableError, ask, key_headers

CONNECT_SECONDS = 10.0
BUSY_STATUSES = (429, 503)


class HttpClientError(Exception):
    """No usable answer; the message says why, quoting the server where it can."""


class UnavailableError(HttpClientError):
    """The server was unreachable or busy (429, 503) and did not start the request: it may be repeated."""


class LostResponseError(HttpClientError):
    """The server may have started the request, and no complete answer came."""


class ServerFailedError(LostResponseError):
    """The server reported a failure (5xx)."""


class TimedOutError(LostResponseError):
    """The answer took longer than allowed."""


class RefusedError(HttpClientError):
    """The server rejected the request as invalid (any other status); repeating it is useless. `is_missing`: it has no
    such path."""

    def __init__(self, message: str, *, is_missing: bool) -> None:
        super().__init__(message)
        self.is_missing = is_missing


class HttpClient:
    """A client of the server at `url`. `seconds` is the default timeout of a whole request; `last_answer` is when it
    last answered one (other than 429 and 503), or this client was made, by the monotonic clock."""

    def __init__(self, url: str, *, seconds: float) -> None:
        self.url = url
        self.last_answer = time.monotonic()
        self._seconds = seconds
        self._headers = key_headers()

    async def get(self, path: str, *, seconds: float | None = None) -> Any:
        """The JSON at `path`, or None if the answer is not JSON; `seconds` overrides the timeout. Raises
        HttpClientError."""
        return await self._request("GET", path, seconds)

    async def post(
        self,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        params: dict[str, str] | None = None,
        seconds: float | None = None,
    ) -> Any:
        """The JSON of the answer or None, as for `get`. Raises HttpClientError."""
        return await self._request("POST", path, seconds, body=body, params=params)

    async def stream(self, path: str, body: dict[str, Any], take: Callable[[dict[str, Any]], bool]) -> None:
        """Gives `take` the JSON of each line of the answer, until it returns True, which closes the request. Raises
        HttpClientError, and what `take` raises."""

        def take_line(line: bytes) -> bool:
            text = line.removeprefix(b"data:").strip()  # of server-sent events, among which are empty lines and pings
            return text.startswith(b"{") and take(json.loads(text))

        await self._request("POST", path, None, body=body, take=take_line)

    async def _request(self, method: str, path: str, seconds: float | None, **content: Any) -> Any:
        seconds = seconds or self._seconds
        try:
            async with asyncio.timeout(seconds):
                limits = {"headers": self._headers, "connect_seconds": CONNECT_SECONDS}
                answer = await ask(method, self.url + path, **content, **limits)
        except UnreachableError as error:
            raise UnavailableError(f"does not answer ({error})") from None
        except TimeoutError:
            raise TimedOutError(f"gave no answer within {seconds:g} seconds") from None
        except RequestFailedError as error:
            raise LostResponseError(f"broke off while it wrote ({error})") from None
        reason = "" if answer.status == HTTPStatus.OK else refusal(answer.status, answer.body)
        if answer.status in BUSY_STATUSES:
            raise UnavailableError(reason)
        self.last_answer = time.monotonic()
        if answer.status >= 500:
            raise ServerFailedError(reason)
        if reason:
            raise RefusedError(reason, is_missing=answer.status == HTTPStatus.NOT_FOUND)
        try:
            return answer.json() if answer.body else None
        except (ValueError, RecursionError):
            return None


def refusal(status: int, body: bytes) -> str:
    """The server's reason for an error status, as in `refused with 400: the prompt is too long`."""
    try:
        detail = json.loads(body)
    except (ValueError, RecursionError):
        detail = body.decode(errors="replace")
    while isinstance(detail, dict) and (inner := detail.get("error") or detail.get("message") or detail.get("detail")):
        detail = inner
    return f"refused with {status}: {' '.join(str(detail).split())[:300]}"
