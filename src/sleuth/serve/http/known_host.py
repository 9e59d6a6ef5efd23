"""Host header check for servers on loopback, against DNS rebinding."""

from __future__ import annotations

import re
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from sleuth.serve.http.refused import refusal

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
HOST = re.compile(r"(?P<name>\[[^\]]*\]|[^:]*)(:[0-9]*)?")


class KnownHost:
    """Refuses requests for other hosts than `names`: a foreign page can resolve its own name to this machine (DNS
    rebinding) and would read our answers as same-origin."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host", "")
            match = HOST.fullmatch(host.lower())
            if match is None or match["name"] not in self._names:
                line = f"this server answers to {', '.join(sorted(self._names))} and was asked for as {host[:100]!r}"
                return await refusal(403, line, {"connection": "close"})(scope, receive, send)
        await self._app(scope, receive, send)


def known_names(host: str) -> frozenset[str] | None:
    """The accepted names of a server at `host`; None (any) if other machines can reach it by unknown names."""
    if host in ("localhost", "::1") or host.startswith("127."):
        return LOOPBACK | {host}
    return None
