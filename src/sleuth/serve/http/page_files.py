"""The files of a page that a server shows to browsers, which may load and send nothing elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

POLICY = (
    "default-src 'none'; script-src 'self'; style-src {style}; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-cache"}


def serve_file(content: bytes, kind: str, *, style: str = "'self'") -> Callable[[Request], Awaitable[Response]]:
    """A route that serves a file of this media type; `style` are the sources of styles."""
    headers = {"content-security-policy": POLICY.format(style=style), **HEADERS}

    async def serve(request: Request) -> Response:
        return Response(content, media_type=kind, headers=headers)

    return serve
