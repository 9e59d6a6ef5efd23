"""Routes: the operations of an API with their description in OpenAPI 3.1, files of a page, and metrics of requests."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sleuth import __version__

JSON = "application/json"
PATH = "/openapi.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What answers a path: to POST if one of `bodies` is sent, else to GET. `answers` are the shapes and descriptions
    of JSON answers by status, and `other_kinds` further media types of the answer with status 200."""

    path: str
    summary: str
    respond: Callable[[Request], Awaitable[Response]]
    bodies: tuple[type[BaseModel], ...] = ()
    answers: Mapping[int | str, tuple[Any, str]]
    other_kinds: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        return "POST" if self.bodies else "GET"


def routes_of(operations: Sequence[Operation], *, title: str, description: str) -> list[Route]:
    """The routes of the operations and of their description, at /openapi.json."""

    async def described(request: Request) -> Response:
        return Response(_document(operations, title, description), media_type=JSON)

    routes = [Route(operation.path, operation.respond, methods=[operation.method]) for operation in operations]
    return [*routes, Route(PATH, described, methods=["GET"])]


def _document(operations: Sequence[Operation], title: str, description: str) -> bytes:
    sent = [(body, "validation") for operation in operations for body in operation.bodies]
    answered = [(shape, "serialization") for operation in operations for shape, _ in operation.answers.values()]
    inputs: Any = [(shape, mode, TypeAdapter(shape)) for shape, mode in dict.fromkeys([*sent, *answered])]
    schemas, definitions = TypeAdapter.json_schemas(inputs, ref_template="#/components/schemas/{model}")
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        responses: dict[str, Any] = {
            str(status): {"description": line, "content": {JSON: {"schema": schemas[shape, "serialization"]}}}
            for status, (shape, line) in operation.answers.items()
        }
        found = responses.setdefault("200", {"description": "The answer.", "content": {}})
        found["content"] |= {kind: {} for kind in operation.other_kinds}
        described: dict[str, Any] = {"summary": operation.summary, "responses": responses}
        if operation.bodies:
            shapes = [schemas[body, "validation"] for body in operation.bodies]
            content = {JSON: {"schema": {"oneOf": shapes} if len(shapes) > 1 else shapes[0]}}
            described["requestBody"] = {"required": True, "content": content}
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    info = {"title": title, "version": __version__, "description": description}
    components = {"schemas": definitions.get("$defs", {})}
    return to_json({"openapi": "3.1.0", "info": info, "paths": paths, "components": components})


POLICY = (
    "default-src 'none'; script-src 'self'; style-src {style}; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Of a page: it may load and send nothing elsewhere."""
FILE_HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-cache"}


def file_route(path: str, content: bytes, kind: str, *, style: str = "'self'") -> Route:
    """The route of a page's file of this media type; `style` are the sources of styles."""
    headers = {"content-security-policy": POLICY.format(style=style), **FILE_HEADERS}

    async def serve(request: Request) -> Response:
        return Response(content, media_type=kind, headers=headers)

    return Route(path, serve)


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
TEXT = "text/plain"
CONTENT_TYPE = f"{TEXT}; version=0.0.4; charset=utf-8"


class Counters:
    """Counts answers by path and status for Prometheus, with a histogram of their seconds. Paths not in `paths` count
    as "other", because clients can invent any number of them."""

    def __init__(self, paths: Collection[str]) -> None:
        self._paths = paths
        self._answers: Counter[tuple[str, int]] = Counter()
        self._buckets = [0] * (len(SECONDS) + 1)
        self._seconds = 0.0

    def record(self, path: str, status: int, seconds: float) -> None:
        """Counts one answer, at its end or at the start of a stream."""
        self._answers[path if path in self._paths else "other", status] += 1
        self._buckets[bisect_left(SECONDS, seconds)] += 1
        self._seconds += seconds

    def text(self, *, totals: Mapping[str, float], gauges: Mapping[str, float]) -> str:
        """All metrics, with further `totals` (counters) and `gauges`."""
        lines = ["# TYPE sleuth_requests_total counter"]
        for (path, status), count in sorted(self._answers.items()):
            lines.append(f'sleuth_requests_total{{path="{path}",status="{status}"}} {count}')
        for name, value in totals.items():
            lines += [f"# TYPE {name} counter", f"{name} {value:.0f}"]
        lines.append("# TYPE sleuth_request_seconds histogram")
        total = 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self._buckets, strict=True):
            total += count
            lines.append(f'sleuth_request_seconds_bucket{{le="{bound}"}} {total}')
        lines += [f"sleuth_request_seconds_sum {self._seconds:.6f}", f"sleuth_request_seconds_count {total}"]
        for name, value in gauges.items():
            lines += [f"# TYPE {name} gauge", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"
