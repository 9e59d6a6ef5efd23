"""The application of `sleuth retriever`: one index behind the HTTP APIs that existing trainers use.

- Search-R1 and slime: `POST /retrieve {"queries": [...], "topk": 3, "return_scores": true}`. Without scores the
  original server fails with 500 or mixes results up (it unpacks a pair that is not there); ours returns bare documents.
- SkyRL's own server: `POST /retrieve {"query": "...", "topk": 3}`; one query, and still a list of lists.
- ReSearch and FlashRAG: `POST /batch_search {"query": [...], "top_n": 5}`; no envelope.
- On demand, clients of the Model Context Protocol: `POST /mcp`, see `mcp_server`.

Routing and middleware would take longer than a small index itself, so the gate before them answers these paths itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sleuth.serve.http.access import Access, Gate, Limits
from sleuth.serve.http.routes import CONTENT_TYPE, JSON, TEXT, Counters, Operation, routes_of
from sleuth.serve.retriever.mcp_server import MCP_PATH, McpRoute
from sleuth.serve.retriever.search_handler import IndexLoader, RequestHandler
from sleuth.serve.retriever.wire import (
    BATCH_SEARCH_BODY,
    RETRIEVE_BODY,
    TOP_K,
    BatchSearch,
    BatchSearchResults,
    Health,
    OneQuery,
    Problem,
    Queries,
    Results,
    documents,
    read_body,
    scored_documents,
)

PATHS = ("/retrieve", "/batch_search", MCP_PATH, "/health", "/metrics", "/openapi.json")
PROBLEMS: dict[int | str, tuple[Any, str]] = {
    401: (Problem, "The key is missing or wrong."),
    403: (Problem, "Another host name or a page of another site."),
    408: (Problem, "The body did not arrive in time."),
    413: (Problem, "The body is too large."),
    422: (Problem, "The body is invalid."),
    429: (Problem, "Too many requests of this client are running."),
    503: (Problem, "The index is still being opened, or too many requests are waiting."),
    504: (Problem, "The search took too long."),
}


def retriever_app(loader: IndexLoader, limits: Limits, access: Access, *, mcp: bool = False) -> Gate:
    """The application; start `loader` first. Every error is one line under `detail`.

    With `mcp` it also serves the tools of `mcp_server`, which need the package mcp and the application's lifespan.
    """
    handler = RequestHandler(loader, limits)
    mcp_route = McpRoute(handler) if mcp else None
    counters = Counters(PATHS)
    routes = routes_of(
        [*DIALECTS, *_monitoring(loader, handler, counters)],
        title="sleuth retriever",
        description="Passages for queries, in the dialects of Search-R1, SkyRL and ReSearch.",
    )
    app = Starlette(
        routes=[*routes, mcp_route.route] if mcp_route else routes,
        exception_handlers={HTTPException: _refused},
        lifespan=mcp_route.lifespan if mcp_route else None,
    )
    return Gate(app, access=access, limits=limits, refusal=_refusal, counters=counters, fast=_dialects(handler))


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
    raise AssertionError(f"{request.url.path} is answered by the gate")


DIALECTS = (
    Operation(
        path="/retrieve",
        summary="Search-R1, slime, SkyRL",
        respond=_unreachable,
        bodies=(Queries, OneQuery),
        answers={200: (Results, "The passages."), **PROBLEMS},
    ),
    Operation(
        path="/batch_search",
        summary="ReSearch, FlashRAG",
        respond=_unreachable,
        bodies=(BatchSearch,),
        answers={200: (BatchSearchResults, "The passages."), **PROBLEMS},
    ),
)
"""For /openapi.json, and for methods other than POST, which the gate answers."""


def _monitoring(loader: IndexLoader, handler: RequestHandler, counters: Counters) -> list[Operation]:
    async def health(request: Request) -> Response:
        status = "failed" if loader.error else "ready" if loader.index is not None else "opening"
        card = (loader.index or loader).card  # an opened index knows more than what was written when it was made
        state = Health(status=status, progress=loader.progress, index=card.as_json(), detail=loader.error)
        return Response(to_json(state.model_dump()), 200 if status == "ready" else 503, media_type=JSON)

    async def metrics(request: Request) -> Response:
        gauges = {
            "sleuth_requests_waiting": handler.waiting,
            "sleuth_ready": float(loader.index is not None),
            "sleuth_passages": loader.card.count,
        }
        text = counters.text(totals={"sleuth_queries_total": handler.queries}, gauges=gauges)
        return Response(text, media_type=CONTENT_TYPE)

    states: dict[int | str, tuple[Any, str]] = {
        200: (Health, "The index is ready."),
        503: (Health, "It is being opened, or could not be."),
    }
    return [
        Operation(path="/health", summary="Whether the index is ready", respond=health, answers=states),
        Operation(path="/metrics", summary="Prometheus", respond=metrics, answers={}, other_kinds=(TEXT,)),
    ]


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _refusal(error)


def _refusal(error: HTTPException) -> Response:
    return JSONResponse({"detail": str(error.detail)}, error.status_code, headers=error.headers)
