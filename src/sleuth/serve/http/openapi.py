"""Operations of an API: their routes, and their description in OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
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
