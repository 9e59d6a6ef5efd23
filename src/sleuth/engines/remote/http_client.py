"""Requests to one server: what can become of a request, told apart by whether it may be made again."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from sleuth.retrieval.connections import Connections

CONNECT_SECONDS = 10.0
TURNED_AWAY = (429, 503)


class HttpClientError(Exception):
    """There is no answer; the message says why, in the server's words where it has some."""


class UnavailableError(HttpClientError):
    """Nothing was begun: nobody was found, or they turned it away. It can be asked again."""


class LostResponseError(HttpClientError):
    """It may have been begun, and no whole answer came."""


class ServerFailedError(LostResponseError):
    """The server says itself that it failed (5xx)."""


class TimedOutError(LostResponseError):
    """It took longer than it may."""


class RefusedError(HttpClientError):
    """The request is wrong in the eyes of the server; it would be again."""


class HttpClient:
    """Connections to the server at `url`, of one event loop; an answer may take `seconds`."""

    def __init__(self, url: str, *, seconds: float) -> None:
        self.url = url
        self._seconds = seconds
        self._client = httpx.AsyncClient(
            base_url=url,
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),  # `_ask` keeps the time of the whole
            transport=Connections(),
            trust_env=False,
        )

    async def get(self, path: str) -> Any:
        """The JSON at `path`. Raises LineError."""
        return await self._ask("GET", path)

    async def post(
        self,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        params: dict[str, str] | None = None,
        seconds: float | None = None,
    ) -> Any:
        """The JSON that is answered, None where there is none; within `seconds`, where they are others than usual.
        Raises LineError."""
        return await self._ask("POST", path, json=body, params=params, seconds=seconds)

    async def aclose(self) -> None:
        """Hang up."""
        await self._client.aclose()

    async def _ask(self, method: str, path: str, *, seconds: float | None = None, **asked: Any) -> Any:
        seconds = seconds or self._seconds
        try:
            async with asyncio.timeout(seconds):
                response = await self._client.request(method, path, **asked)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise UnavailableError(f"does not answer ({str(error) or type(error).__name__})") from None
        except (httpx.TimeoutException, TimeoutError):
            raise TimedOutError(f"gave no answer within {seconds:g} seconds") from None
        except httpx.HTTPError as error:
            raise LostResponseError(f"broke off while it wrote ({str(error) or type(error).__name__})") from None
        if response.status_code in TURNED_AWAY:
            raise UnavailableError(refusal(response))
        if response.status_code >= 500:
            raise ServerFailedError(refusal(response))
        if response.status_code != httpx.codes.OK:
            raise RefusedError(refusal(response))
        try:
            return response.json() if response.content else None
        except (ValueError, RecursionError):
            return None


def refusal(response: httpx.Response) -> str:
    """`refused with 400: the prompt is too long`, in the words of the server."""
    try:
        told = response.json()
    except ValueError:
        told = response.text
    while isinstance(told, dict) and (inner := told.get("error") or told.get("message") or told.get("detail")):
        told = inner
    return f"refused with {response.status_code}: {' '.join(str(told).split())[:300]}"
