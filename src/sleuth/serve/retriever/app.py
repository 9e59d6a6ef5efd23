"""The application of `sleuth retriever`: one index behind the HTTP APIs that existing trainers use.

- Search-R1 and slime: `POST /retrieve {"queries": [...], "topk": 3, "return_scores": true}`. Without scores the
  original server fails with 500 or mixes results up (it unpacks a pair that is not there); ours returns bare documents.
- SkyRL's own server: `POST /retrieve {"query": "...", "topk": 3}`; one query, and still a list of lists.
- ReSearch and FlashRAG: `POST /batch_search {"query": [...], "top_n": 5}`; no envelope.

FastAPI would take longer than a small index itself, so `FastPathApp` serves these paths as plain ASGI.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from sleuth import __version__
from sleuth.retrieval.open_index import Index
from sleuth.serve.http.access import Access, AccessControl
from sleuth.serve.http.counters import CONTENT_TYPE, CountAnswers, Counters
from sleuth.serve.http.limits import BodyLimit, Limits, receive_body
from sleuth.serve.retriever.index_loader import IndexLoader
from sleuth.serve.retriever.wire import (
    BATCH_SEARCH_BODY,
    RETRIEVE_BODY,
    TOP_K,
    BatchSearch,
    BatchSearchResults,
    BodyError,
    Health,
    OneQuery,
    Problem,
    Queries,
    Results,
    documents,
    read_body,
    scored_documents,
)
from sleuth.types import Passage

PATHS = ("/retrieve", "/batch_search", "/health", "/metrics", "/openapi.json")
QUERIES_PER_TURN = 8  # of one request, before other requests get a turn
MIN_SECONDS_FOR_THREAD = 0.005  # CPU seconds per query; a thread costs half a millisecond on busy cores
PROBLEMS: dict[int | str, dict[str, Any]] = {
    401: {"model": Problem, "description": "The key is missing or wrong."},
    403: {"model": Problem, "description": "Another host name or a page of another site."},
    408: {"model": Problem, "description": "The body did not arrive in time."},
    413: {"model": Problem, "description": "The body is too large."},
    422: {"model": Problem, "description": "The body is invalid."},
    429: {"model": Problem, "description": "Too many requests of this client are running."},
    503: {"model": Problem, "description": "The index is still being opened, or too many requests are waiting."},
    504: {"model": Problem, "description": "The search took too long."},
}


def retriever_app(loader: IndexLoader, limits: Limits, access: Access) -> FastAPI:
    """The application; start `loader` first. Every error is one line under `detail`."""
    app = FastPathApp(
        title="sleuth retriever",
        version=__version__,
        description="Passages for queries, in the dialects of Search-R1, SkyRL and ReSearch.",
        docs_url=None,  # those pages load scripts from other sites
        redoc_url=None,
    )
    counters = Counters(PATHS)
    handler = _RequestHandler(loader, limits)
    _add_error_handlers(app)
    app.serve_fast(_add_dialects(app, handler), limits, counters, access)
    _add_monitoring(app, loader, handler, counters)
    app.add_middleware(BodyLimit, limits=limits, refusal=_refusal)
    app.add_middleware(CountAnswers, counters=counters)  # outermost, to count refused requests too
    return app


class _RequestHandler:
    """Answers queries from the index, inline if they are fast, else in threads."""

    def __init__(self, loader: IndexLoader, limits: Limits) -> None:
        self.queries = 0
        self.waiting = 0
        self._loader = loader
        self._limits = limits
        self._seconds_per_query = MIN_SECONDS_FOR_THREAD  # until it is known
        self._threads = ThreadPoolExecutor(min(8, os.cpu_count() or 1), "search")

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Passages for each query. Raises HTTPException 503 and 504."""
        index = self._loader.index
        if index is None:
            state = self._loader.error or f"the index is being opened, {self._loader.progress:.0%} so far"
            raise HTTPException(503, state, headers={"retry-after": "2"})
        if self.waiting >= self._limits.waiting:
            detail = f"{self._limits.waiting} requests are waiting; retry later"
            raise HTTPException(503, detail, headers={"retry-after": "1"})
        if index.batch == 1 and len(queries) <= QUERIES_PER_TURN and self._seconds_per_query < MIN_SECONDS_FOR_THREAD:
            self.queries += len(queries)
            return self._turn(index, queries, k)  # too fast to need a timeout
        self.waiting += 1
        try:
            async with asyncio.timeout(self._limits.seconds):
                results = await self._find(index, queries, k)
        except TimeoutError:
            raise HTTPException(
                504, f"no answer within {self._limits.seconds:g} seconds; ask for less at once"
            ) from None
        finally:
            self.waiting -= 1
        self.queries += len(queries)
        return results

    async def _find(self, index: Index, queries: Sequence[str], k: int) -> list[list[Passage]]:
        if index.batch > 1:  # such an index batches queries across requests, in a thread of its own
            return await index.search(queries, k)
        results: list[list[Passage]] = []
        for start in range(0, len(queries), QUERIES_PER_TURN):
            if start:
                await asyncio.sleep(0)  # lets other requests run, and the timeout fire
            turn = queries[start : start + QUERIES_PER_TURN]
            if self._seconds_per_query < MIN_SECONDS_FOR_THREAD:
                results += self._turn(index, turn, k)
            else:
                results += await asyncio.get_running_loop().run_in_executor(self._threads, self._turn, index, turn, k)
        return results

    def _turn(self, index: Index, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Results of a few queries. Their CPU time decides whether later ones run in a thread; wall time would seem
        slow on busy cores, where a thread costs most."""
        started = time.thread_time()
        results = index.find(queries, k)
        if queries:  # capped, so that one very long query does not dominate
            seconds = min((time.thread_time() - started) / len(queries), 2 * MIN_SECONDS_FOR_THREAD)
            self._seconds_per_query += 0.1 * (seconds - self._seconds_per_query)
        return results


def _add_dialects(app: FastAPI, handler: _RequestHandler) -> dict[str, Answer]:
    """Adds the dialects to the application's schema and returns their handlers by path."""

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

    _describe(app, "/retrieve", "Search-R1, slime, SkyRL", (Queries, OneQuery), Results)
    _describe(app, "/batch_search", "ReSearch, FlashRAG", (BatchSearch,), BatchSearchResults)
    return {"/retrieve": retrieve, "/batch_search": batch_search}


def _describe(app: FastAPI, path: str, summary: str, bodies: Sequence[type[BaseModel]], answer: Any) -> None:
    """Registers a dialect whose body is one of `bodies`, for /openapi.json and for methods other than POST, which is
    answered by the fast path."""
    shapes = [body.model_json_schema() for body in bodies]
    content = {"application/json": {"schema": {"oneOf": shapes} if len(shapes) > 1 else shapes[0]}}

    async def unreachable() -> None:
        raise AssertionError(f"{path} is answered by the fast path")

    app.post(
        path,
        summary=summary,
        responses={200: {"model": answer}, **PROBLEMS},
        openapi_extra={"requestBody": {"required": True, "content": content}},
    )(unreachable)


def _add_monitoring(app: FastAPI, loader: IndexLoader, handler: _RequestHandler, counters: Counters) -> None:
    @app.get(
        "/health", responses={200: {"model": Health}, 503: {"model": Health}}, summary="Whether the index is ready"
    )
    async def health() -> Response:
        status = "failed" if loader.error else "ready" if loader.index is not None else "opening"
        state = Health(status=status, progress=loader.progress, index=loader.card.as_json(), detail=loader.error)
        return _json(state.model_dump(), status=200 if status == "ready" else 503)

    @app.get(
        "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}}, summary="Prometheus"
    )
    async def metrics() -> Response:
        gauges = {
            "sleuth_requests_waiting": handler.waiting,
            "sleuth_ready": float(loader.index is not None),
            "sleuth_passages": loader.card.count,
        }
        text = counters.text(totals={"sleuth_queries_total": handler.queries}, gauges=gauges)
        return Response(text, media_type=CONTENT_TYPE)


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return _refusal(error.status_code, str(error.detail), error.headers)


def _refusal(status: int, detail: str, headers: Mapping[str, str] | None) -> Response:
    return JSONResponse({"detail": detail}, status, headers=headers)


def _json(content: object, status: int = 200) -> Response:
    return Response(to_json(content), status, media_type="application/json")


Answer = Callable[[bytes], Awaitable[object]]
"""A handler from a body to the content of a JSON answer. May raise BodyError and HTTPException."""


class FastPathApp(FastAPI):
    """A FastAPI application that answers some POST paths before FastAPI sees them."""

    def serve_fast(self, fast_paths: Mapping[str, Answer], limits: Limits, counters: Counters, access: Access) -> None:
        """Sets the handlers of POST requests by path, and who may ask for any path."""
        self._fast_paths = dict(fast_paths)
        self._limits = limits
        self._counters = counters
        self._access = AccessControl(
            self._admitted, access, _refusal, refused=lambda path, status: counters.record(path, status, 0.0)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._access(scope, receive, send)

    async def _admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._fast_paths.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if answer is None:
            return await super().__call__(scope, receive, send)
        started = time.perf_counter()
        status, headers = 200, {}
        try:
            content = await answer(await receive_body(scope, receive, self._limits))
        except BodyError as error:
            status, content = 422, {"detail": str(error)}
        except HTTPException as error:
            status, content, headers = error.status_code, {"detail": error.detail}, error.headers or {}
        body = to_json(content)
        shown = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        shown += [(name.encode(), value.encode()) for name, value in headers.items()]
        self._counters.record(scope["path"], status, time.perf_counter() - started)
        await send({"type": "http.response.start", "status": status, "headers": shown})
        await send({"type": "http.response.body", "body": body})
