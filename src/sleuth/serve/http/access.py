"""Who may ask a server: by the name it is asked under, the page that asks, a key, and the requests of one client."""

from __future__ import annotations

import hmac
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
HOST = re.compile(r"(?P<name>\[[^\]]*\]|[^:]*)(:[0-9]*)?")
OTHER_SITES = (b"cross-site", b"same-site")
READING = ("GET", "HEAD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The rules of one server. `hosts` are the names it answers to (None: any), `key` the one that requests must carry
    (None: none), `per_client` the most requests of one address at once (None: any number)."""

    hosts: Collection[str] | None = None
    key: str | None = None
    per_client: int | None = None
    open_paths: Collection[str] = ("/health",)
    """What may be read without the key."""

    def problem(self, scope: Scope) -> tuple[int, str, Mapping[str, str]] | None:
        """(status, line, headers) of a refusal, or None."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self.hosts is not None and (not (match := HOST.fullmatch(host)) or match["name"] not in self.hosts):
            return (
                403,
                f"this server answers to {', '.join(sorted(self.hosts))} and was asked for as {host[:100]!r}",
                {},
            )
        if _is_foreign(scope["method"], headers, host):
            return 403, "a page of another site may not ask this server", {}
        is_open = scope["method"] in READING and scope["path"] in self.open_paths
        if self.key is not None and not is_open and not _carries(headers, self.key):
            return 401, "expected the header `Authorization: Bearer KEY` with this server's key", BEARER
        return None


BEARER = {"www-authenticate": "Bearer"}


def known_names(host: str) -> frozenset[str] | None:
    """The accepted names of a server at `host`; None (any) if other machines can reach it by unknown names."""
    if host in ("localhost", "::1") or host.startswith("127."):
        return LOOPBACK | {host}
    return None


class AccessControl:
    """Middleware that enforces `access`. `refusal` makes error answers from a status, a line and headers; `refused` is
    called with the path and status of each."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        refusal: Callable[[int, str, Mapping[str, str]], Response],
        refused: Callable[[str, int], None] = lambda path, status: None,
    ) -> None:
        self._app = app
        self._access = access
        self._refusal = refusal
        self._refused = refused
        self._running: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if (problem := self._access.problem(scope)) is not None:
            return await self._refuse(*problem)(scope, receive, send)
        most = self._access.per_client
        if most is None:
            return await self._app(scope, receive, send)
        client = (scope.get("client") or ("unknown", 0))[0]
        if self._running[client] >= most:
            line = f"{most} requests of your address are running; retry later"
            return await self._refuse(429, line, {"retry-after": "1"})(scope, receive, send)
        self._running[client] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running[client] -= 1
            if not self._running[client]:
                del self._running[client]

    def _refuse(self, status: int, line: str, headers: Mapping[str, str]) -> ASGIApp:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            self._refused(scope["path"], status)  # the body was not read, and must not be taken for the next request
            await self._refusal(status, line, {**headers, "connection": "close"})(scope, receive, send)

        return answer


def _is_foreign(method: str, headers: Mapping[bytes, bytes], host: str) -> bool:
    """Whether a browser sent this for a page of another site, which may follow links here and nothing else. Without a
    body or with one of plain text, a page may post anywhere (a "simple request")."""
    if (site := headers.get(b"sec-fetch-site")) is not None:
        return site in OTHER_SITES and not (method in READING and headers.get(b"sec-fetch-mode") == b"navigate")
    origin = headers.get(b"origin")
    return origin is not None and origin.decode("latin-1").lower().rpartition("//")[2] != host


def _carries(headers: Mapping[bytes, bytes], key: str) -> bool:
    scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), key.encode())
