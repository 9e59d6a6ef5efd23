"""The application of `sleuth watch`: the reports of runs that are under way. Answers GET only."""

from __future__ import annotations

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
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from sleuth.report.live import LiveReport, state_shown
from sleuth.serve.access import FILE_HEADERS, Access, Gate, Limits, file_route
from sleuth.serve.refused import Refused, refused_answer
from sleuth.types import SleuthError

REQUESTS = 64
"""Concurrent requests; one of them reads the runs at a time."""
SCRIPTS = ("elements.js", "transcript.js", "rollouts.js", "questions.js", "curves.js", "watch.js")


def watch_app(reports: Sequence[LiveReport], access: Access) -> Starlette:
    """The application, with the report of the first run under `/0/`. The page itself holds nothing of the runs and
    needs no key; it asks for the key."""
    templates, assets = files("sleuth.report") / "templates", files("sleuth.serve") / "assets"
    page = (templates / "watch.html").read_bytes()
    scripts = b"\n".join((templates / name).read_bytes() for name in SCRIPTS)
    styles = b"\n".join((templates / name).read_bytes() for name in ("report.css", "watch.css"))
    served = {
        **{f"/{at}/": (page, "text/html") for at in range(len(reports))},
        "/page.css": (styles, "text/css"),
        "/page.js": (scripts, "text/javascript"),
        "/api.js": ((assets / "api.js").read_bytes(), "text/javascript"),
    }
    routes = [
        file_route(path, content, kind, style="'self' 'unsafe-inline'")  # bars have widths
        for path, (content, kind) in served.items()
    ]
    answers: dict[str, Callable[[int, Request], Any]] = {
        "state": lambda at, request: state_shown(reports, at),
        "page": lambda at, request: reports[at].page(),
        "rollouts/{step:int}": lambda at, request: reports[at].rollouts(request.path_params["step"]),
    }
    for at in range(len(reports)):
        routes += [Route(f"/{at}/{path}", _route(partial(answer, at))) for path, answer in answers.items()]

    async def first(request: Request) -> Response:
        return RedirectResponse("0/", headers=FILE_HEADERS)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ready"})

    routes += [Route("/", first), Route("/health", health)]
    access = replace(access, open_paths=(*access.open_paths, "/", *served))
    gate = Middleware(Gate, access=access, limits=Limits(body_bytes=0), most=REQUESTS)
    return Starlette(routes=routes, middleware=[gate], exception_handlers={HTTPException: refused_answer})


def _route(answer: Callable[[Request], Any]) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        """What `answer` returns, as JSON. Reading a run does not halt other requests."""
        try:
            body = to_json(await run_in_threadpool(answer, request))
        except SleuthError as error:
            return Refused(404, str(error), headers=FILE_HEADERS).response()
        return Response(body, media_type="application/json", headers=FILE_HEADERS)

    return respond
