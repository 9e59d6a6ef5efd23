"""The page to talk to the agent. It asks the API as any client does, and nobody else for anything."""

from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

ASSETS = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/asking.js": ("asking.js", "text/javascript"),
    "/page.js": ("page.js", "text/javascript"),
}
PAGE_PATHS = tuple(ASSETS)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """The page at `/`, with its style and scripts."""
    for path, (name, kind) in ASSETS.items():
        content = files("sleuth.serve.chat").joinpath("assets", name).read_bytes()
        app.add_route(path, _shown(content, kind), methods=["GET"], include_in_schema=False)


def _shown(content: bytes, kind: str):
    async def show(request: Request) -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return show
