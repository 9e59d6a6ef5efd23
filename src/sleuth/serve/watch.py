"""The application of `sleuth watch`: the reports of runs that are under way. Answers GET only."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import Any

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from sleuth.report.live_report import LiveReport, asset, shell, state_shown
from sleuth.serve.http.access import Access, AccessControl
from sleuth.serve.http.limits import BodyLimit, Limits, RequestLimit
from sleuth.serve.http.page_files import HEADERS, serve_file
from sleuth.serve.http.refused import refusal
from sleuth.types import SleuthError

LIMITS = Limits(body_bytes=0)
REQUESTS = 64
"""Concurrent requests; one of them reads the runs at a time."""


def watch_app(reports: Sequence[LiveReport], access: Access) -> Starlette:
    """The application, with the report of the first run under `/0/`. The page itself holds nothing of the runs and
    needs no key; it asks for the key."""
    script = files("sleuth.serve.chat").joinpath("assets", "api.js").read_bytes()
    served = {
        **{f"/{at}/": (shell().encode(), "text/html") for at in range(len(reports))},
        "/page.css": (asset("page.css"), "text/css"),
        "/page.js": (asset("page.js"), "text/javascript"),
        "/api.js": (script, "text/javascript"),
    }
    routes = [
        Route(path, serve_file(content, kind, style="'self' 'unsafe-inline'"))  # bars have widths
        for path, (content, kind) in served.items()
    ]
    answers: dict[str, Callable[[LiveReport, Request], Any]] = {
        "state": lambda report, request: state_shown(reports, reports.index(report)),
        "page": lambda report, request: report.page(),
        "questions": lambda report, request: report.questions(),
        "rollouts/{step:int}": lambda report, request: report.rollouts(request.path_params["step"]),
    }
    for at, report in enumerate(reports):
        routes += [Route(f"/{at}/{path}", _route(partial(answer, report))) for path, answer in answers.items()]

    async def first(request: Request) -> Response:
        return RedirectResponse("0/", headers=HEADERS)

    async def health(request: Request) -> Response:
        return Response(to_json({"status": "ready"}), media_type="application/json")

    routes += [Route("/", first), Route("/health", health)]
    access = replace(access, open_paths=(*access.open_paths, "/", *served))
    middleware = [
        Middleware(AccessControl, access=access, refusal=refusal),
        Middleware(RequestLimit, limit=REQUESTS),
        Middleware(BodyLimit, limits=LIMITS, refusal=refusal),
    ]
    return Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: _refused})


def _route(answer: Callable[[Request], Any]) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        return await _answer(request, lambda: answer(request))

    return respond


async def _answer(request: Request, content: Callable[[], Any]) -> Response:
    """What `content` returns, as JSON; 304 where the browser has it. Reading a run does not halt other requests."""
    try:
        body = to_json(await run_in_threadpool(content))
    except SleuthError as error:
        return refusal(404, str(error), HEADERS)
    headers = HEADERS | {"etag": f'"{hashlib.sha256(body).hexdigest()[:32]}"'}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(error.status_code, f"{request.url.path}: {error.detail}", error.headers)
