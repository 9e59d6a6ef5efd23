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
from sleuth.serve.http.access import Access, Gate, Limits
from sleuth.serve.http.refused import Refused
from sleuth.serve.http.routes import FILE_HEADERS, JSON, file_route
from sleuth.types import SleuthError

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
        file_route(path, content, kind, style="'self' 'unsafe-inline'")  # bars have widths
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
        return RedirectResponse("0/", headers=FILE_HEADERS)

    async def health(request: Request) -> Response:
        return Response(to_json({"status": "ready"}), media_type=JSON)

    routes += [Route("/", first), Route("/health", health)]
    access = replace(access, open_paths=(*access.open_paths, "/", *served))
    gate = Middleware(Gate, access=access, limits=Limits(body_bytes=0), most=REQUESTS)
    return Starlette(routes=routes, middleware=[gate], exception_handlers={HTTPException: _refused})


def _route(answer: Callable[[Request], Any]) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        """What `answer` returns, as JSON; 304 where the browser has it. Reading a run does not halt other requests."""
        try:
            body = to_json(await run_in_threadpool(answer, request))
        except SleuthError as error:
            return Refused(404, str(error), headers=FILE_HEADERS).response()
        headers = FILE_HEADERS | {"etag": f'"{hashlib.sha256(body).hexdigest()[:32]}"'}
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type=JSON, headers=headers)

    return respond


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return Refused(error.status_code, f"{request.url.path}: {error.detail}", headers=error.headers).response()
