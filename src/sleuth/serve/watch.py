"""The application of `sleuth watch`: the page that follows runs, and what it asks for. Answers GET only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from typing import Any

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sleuth.report.watch_page import WatchPage, asset
from sleuth.serve.http.access import Access, AccessControl
from sleuth.serve.http.limits import BodyLimit, Limits, RequestLimit
from sleuth.serve.http.page_files import HEADERS, serve_file
from sleuth.serve.http.refused import refusal
from sleuth.types import SleuthError

LIMITS = Limits(body_bytes=0)
REQUESTS = 64
"""Concurrent requests; one of them reads the runs at a time."""


def watch_app(page: WatchPage, access: Access) -> Starlette:
    """The application. The page itself holds nothing of the runs and needs no key; it asks for the key."""
    script = files("sleuth.serve.chat").joinpath("assets", "api.js").read_bytes()
    served = {
        "/": (page.shell.encode(), "text/html"),
        "/page.css": (asset("page.css"), "text/css"),
        "/page.js": (asset("page.js"), "text/javascript"),
        "/api.js": (script, "text/javascript"),
    }
    routes = [
        Route(path, serve_file(content, kind, style="'self' 'unsafe-inline'"))  # bars have widths
        for path, (content, kind) in served.items()
    ]

    async def state(request: Request) -> Response:
        return await _answer(request, page.state)

    async def part(request: Request) -> Response:
        return await _answer(request, lambda: page.part(request.path_params["name"]))

    async def rollouts(request: Request) -> Response:
        run, step = request.path_params["run"], request.path_params["step"]
        return await _answer(request, lambda: page.rollouts(run, step))

    async def health(request: Request) -> Response:
        return Response(to_json({"status": "ready"}), media_type="application/json")

    routes += [
        Route("/state", state),
        Route("/parts/{name}", part),
        Route("/rollouts/{run:int}/{step:int}", rollouts),
        Route("/health", health),
    ]
    access = replace(access, open_paths=(*access.open_paths, *served))
    middleware = [
        Middleware(AccessControl, access=access, refusal=refusal),
        Middleware(RequestLimit, limit=REQUESTS),
        Middleware(BodyLimit, limits=LIMITS, refusal=refusal),
    ]
    return Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: _refused})


async def _answer(request: Request, content: Callable[[], Any]) -> Response:
    """What `content` returns, as JSON; 304 where the browser has it. Reading a run does not halt other requests."""
    try:
        body = to_json(await run_in_threadpool(content))
    except SleuthError as error:
        return refusal(404, str(error), HEADERS)
    except KeyError:
        return refusal(404, f"{request.url.path}: there is no such part", HEADERS)
    headers = HEADERS | {"etag": f'"{hashlib.sha256(body).hexdigest()[:32]}"'}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(error.status_code, f"{request.url.path}: {error.detail}", error.headers)
