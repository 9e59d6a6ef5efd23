"""HTTP requests to one server, with errors by whether the request may be repeated."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from sleuth.retrieval.connections import Connections, key_headers

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
    """The server rejected the request as invalid (any other status); repeating it is useless."""


class HttpClient:
    """A client of the server at `url`, for one event loop. `seconds` is the default timeout of a whole request."""

    def __init__(self, url: str, *, seconds: float) -> None:
        self.url = url
        self._seconds = seconds
        self._client = httpx.AsyncClient(
            base_url=url,
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),  # `_request` times the whole request
            transport=Connections(),
            trust_env=False,
            headers=key_headers(),
        )

    async def get(self, path: str) -> Any:
        """The JSON at `path`, or None if the answer is not JSON. Raises HttpClientError."""
        return await self._request("GET", path)

    async def post(
        self,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        params: dict[str, str] | None = None,
        seconds: float | None = None,
    ) -> Any:
        """The JSON of the answer or None, as for `get`; `seconds` overrides the timeout. Raises HttpClientError."""
        return await self._request("POST", path, json=body, params=params, seconds=seconds)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _request(self, method: str, path: str, *, seconds: float | None = None, **options: Any) -> Any:
        seconds = seconds or self._seconds
        try:
            async with asyncio.timeout(seconds):
                response = await self._client.request(method, path, **options)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise UnavailableError(f"does not answer ({str(error) or type(error).__name__})") from None
        except (httpx.TimeoutException, TimeoutError):
            raise TimedOutError(f"gave no answer within {seconds:g} seconds") from None
        except httpx.HTTPError as error:
            raise LostResponseError(f"broke off while it wrote ({str(error) or type(error).__name__})") from None
        if response.status_code in BUSY_STATUSES:
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
    """The server's reason for an error status, as in `refused with 400: the prompt is too long`."""
    try:
        detail = response.json()
    except ValueError:
        detail = response.text
    while isinstance(detail, dict) and (inner := detail.get("error") or detail.get("message") or detail.get("detail")):
        detail = inner
    return f"refused with {response.status_code}: {' '.join(str(detail).split())[:300]}"
