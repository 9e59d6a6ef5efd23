"""The application of `sleuth retriever`: one index behind the HTTP APIs that existing trainers use.

- Search-R1 and slime: `POST /retrieve {"queries": [...], "topk": 3, "return_scores": true}`. Without scores the
  original server fails with 500 or mixes results up (it unpacks a pair that is not there); ours returns bare documents.
- SkyRL's own server: `POST /retrieve {"query": "...", "topk": 3}`; one query, and still a list of lists.
- ReSearch and FlashRAG: `POST /batch_search {"query": [...], "top_n": 5}`; no envelope.
- On demand, clients of the Model Context Protocol: `POST /mcp`, see `mcp_server`.

Routing and middleware would take longer than a small index itself, so the gate before them answers these paths itself.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, StrictBool, Tag, TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sleuth.host.escapes import replace_surrogates
from sleuth.retrieval.corpus import contents_of
from sleuth.serve.access import Access, Gate, Limits
from sleuth.serve.mcp_server import McpRoute
from sleuth.serve.refused import as_integer, problem_line
from sleuth.serve.search_handler import MAX_QUERY_CHARACTERS, TOP_K, IndexLoader, RequestHandler
from sleuth.types import Passage

TOP_N = 10
"""Default of `/batch_search`."""
MAX_QUERIES = 4096
"""Of a request; a trainer of 512 prompts with 5 samples each sends 2,560."""
MAX_PASSAGES = 100
"""Of a query."""

Query = Annotated[str, Field(max_length=MAX_QUERY_CHARACTERS, strict=True), BeforeValidator(replace_surrogates)]
QueryList = Annotated[list[Query], Field(max_length=MAX_QUERIES, strict=True)]
Count = Annotated[int, Field(ge=1, le=MAX_PASSAGES, strict=True), BeforeValidator(as_integer)]


class _RetrieveBody(BaseModel):
    topk: Count | None = None
    return_scores: StrictBool = False


class Queries(_RetrieveBody):
    """Search-R1's and slime's body of `/retrieve`."""

    queries: QueryList


class OneQuery(_RetrieveBody):
    """SkyRL's body of `/retrieve`."""

    query: Query


class BatchSearch(BaseModel):
    """ReSearch's and FlashRAG's body of `/batch_search`."""

    query: QueryList
    top_n: Count = TOP_N
    return_score: StrictBool = False


def _kind_of_query(body: Any) -> str | None:
    """The tag of a body's shape in `/retrieve`; None if it has the fields of both."""
    if isinstance(body, dict) and "query" in body:
        return "single" if "queries" not in body else None
    return "batch"


RETRIEVE_BODY: TypeAdapter[Queries | OneQuery] = TypeAdapter(
    Annotated[Annotated[Queries, Tag("batch")] | Annotated[OneQuery, Tag("single")], Discriminator(_kind_of_query)]
)
BATCH_SEARCH_BODY = TypeAdapter(BatchSearch)

Body = TypeVar("Body")


def read_body(shape: TypeAdapter[Body], body: bytes) -> Body:
    """The parsed body. Raises HTTPException 422 if it is not of this shape."""
    try:
        try:
            return shape.validate_json(body)
        except ValidationError as error:
            if error.errors()[0]["type"] != "json_invalid":
                raise
            return shape.validate_python(json.loads(body))  # slower, but accepts unpaired surrogates
    except ValidationError as error:
        raise HTTPException(422, _first_problem(error)) from None
    except (ValueError, RecursionError) as error:
        raise HTTPException(422, " ".join(f"body: not JSON ({error})".split())[:300]) from None


def _first_problem(error: ValidationError) -> str:
    """`queries.3: Input should be a valid string`."""
    first = error.errors(include_input=False, include_url=False)[0]
    if first["type"] == "union_tag_not_found":
        return "give `queries` (a list) or `query` (one), not both"
    return problem_line(first, unnamed=("batch", "single"))


def retriever_app(loader: IndexLoader, limits: Limits, access: Access, *, mcp: bool = False) -> Gate:
    """The application; start `loader` first. Every error is one line under `detail`.

    With `mcp` it also serves the tools of `mcp_server`, which need the package mcp and the application's lifespan.
    """
    handler = RequestHandler(loader, limits)
    mcp_route = McpRoute(handler) if mcp else None
    routes = [
        *(Route(path, _unreachable, methods=["POST"]) for path in ("/retrieve", "/batch_search")),
        Route("/health", _health(loader)),
    ]
    app = Starlette(
        routes=[*routes, mcp_route.route] if mcp_route else routes,
        exception_handlers={HTTPException: _refused},
        lifespan=mcp_route.lifespan if mcp_route else None,
    )
    return Gate(app, access=access, limits=limits, refusal=_refusal, fast=_dialects(handler))


def _dialects(handler: RequestHandler) -> dict[str, Callable[[bytes], Awaitable[object]]]:
    """The handlers of the dialects by path."""

    async def retrieve(sent: bytes) -> object:
        body = read_body(RETRIEVE_BODY, sent)
        queries = [body.query] if isinstance(body, OneQuery) else body.queries
        results = await handler.search(queries, body.topk or TOP_K)
        as_json = scored_documents if body.return_scores else documents
        return {"result": [as_json(passages) for passages in results]}

    async def batch_search(sent: bytes) -> object:
        body = read_body(BATCH_SEARCH_BODY, sent)
        results = await handler.search(body.query, body.top_n)
        bare = [documents(passages) for passages in results]
        if not body.return_score:
            return bare
        return [bare, [[passage.score for passage in passages] for passages in results]]

    return {"/retrieve": retrieve, "/batch_search": batch_search}


async def _unreachable(request: Request) -> Response:
    """For methods other than POST, which the gate answers."""
    raise AssertionError(f"{request.url.path} is answered by the gate")


def _health(loader: IndexLoader) -> Callable[[Request], Awaitable[Response]]:
    async def health(request: Request) -> Response:
        status = "failed" if loader.error else "ready" if loader.index is not None else "opening"
        card = (loader.index or loader).card  # an opened index knows more than what was written when it was made
        state = {"status": status, "progress": loader.progress, "index": card.as_json(), "detail": loader.error}
        return JSONResponse(state, 200 if status == "ready" else 503)

    return health


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _refusal(error)


def _refusal(error: HTTPException) -> Response:
    return JSONResponse({"detail": str(error.detail)}, error.status_code, headers=error.headers)


def documents(passages: Sequence[Passage]) -> list[dict[str, str]]:
    """The passages as bare documents."""
    return [{"id": passage.id, "contents": contents_of(passage)} for passage in passages]


def scored_documents(passages: Sequence[Passage]) -> list[dict[str, object]]:
    """The passages as documents with scores."""
    bare = documents(passages)
    return [{"document": document, "score": passage.score} for document, passage in zip(bare, passages, strict=True)]
