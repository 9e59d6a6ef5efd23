"""`sleuth retriever`: one index behind the HTTP dialects that existing trainers speak.

- Search-R1 and slime: `POST /retrieve {"queries": [...], "topk": 3, "return_scores": true}`. Without scores the
  original server answers 500 or mixes results up, for it unpacks a pair that is not there; ours gives bare documents.
- SkyRL's own server: `POST /retrieve {"query": "...", "topk": 3}`; one query, and still a list of lists.
- ReSearch and FlashRAG: `POST /batch_search {"query": [...], "top_n": 5}`; no envelope.
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
from sleuth.serve.http.counters import CONTENT_TYPE, CountAnswers, Counters
from sleuth.serve.http.limits import BodyLimit, Limits, read_whole
from sleuth.serve.retriever.opening import Opening
from sleuth.serve.retriever.wire import (
    BATCH_SEARCH_BODY,
    RETRIEVE_BODY,
    TOP_K,
    BatchSearch,
    BodyError,
    Health,
    OneQuery,
    Problem,
    Queries,
    Ranked,
    Results,
    documents,
    read_body,
    scored_documents,
)
from sleuth.types import Passage

PATHS = ("/retrieve", "/batch_search", "/health", "/metrics", "/openapi.json")
QUERIES_A_TURN = 8  # of one request, before another has its turn
WORTH_A_THREAD = 0.005  # seconds of the processor a query; a thread costs half a millisecond where cores are busy
PROBLEMS: dict[int | str, dict[str, Any]] = {
    408: {"model": Problem, "description": "The body did not arrive in time."},
    413: {"model": Problem, "description": "The body is too large."},
    422: {"model": Problem, "description": "The body is not what was expected."},
    503: {"model": Problem, "description": "The index is still being opened, or too many requests wait."},
    504: {"model": Problem, "description": "The search took too long."},
}


def retriever_app(opening: Opening, limits: Limits) -> FastAPI:
    """The application; `opening` should have been started. Every problem is one line under `detail`."""
    app = FastPathApp(
        title="sleuth retriever",
        version=__version__,
        description="Passages for queries, in the dialects of Search-R1, SkyRL and ReSearch.",
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
    )
    counters = Counters(PATHS)
    desk = _Desk(opening, limits)
    _tell_problems(app)
    app.serve_fast(_add_dialects(app, desk), limits, counters)
    _add_watching(app, opening, desk, counters)
    app.add_middleware(BodyLimit, limits=limits, refusal=_refusal)
    app.add_middleware(CountAnswers, counters=counters)  # outermost: what is turned away counts too
    return app


class _Desk:
    """Where requests wait for the index."""

    def __init__(self, opening: Opening, limits: Limits) -> None:
        self.queries = 0
        self.waiting = 0
        self._opening = opening
        self._limits = limits
        self._seconds_a_query = WORTH_A_THREAD  # until it is known
        self._threads = ThreadPoolExecutor(min(8, os.cpu_count() or 1), "search")

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Passages for each query. Raises HTTPException 503 and 504."""
        index = self._opening.index
        if index is None:
            state = self._opening.error or f"the index is being opened, {self._opening.progress:.0%} so far"
            raise HTTPException(503, state, headers={"retry-after": "2"})
        if self.waiting >= self._limits.waiting:
            detail = f"{self._limits.waiting} requests wait already; ask again later"
            raise HTTPException(503, detail, headers={"retry-after": "1"})
        if index.batch == 1 and len(queries) <= QUERIES_A_TURN and self._seconds_a_query < WORTH_A_THREAD:
            self.queries += len(queries)
            return self._turn(index, queries, k)  # nothing waits, so nothing has to watch the time
        self.waiting += 1
        try:
            async with asyncio.timeout(self._limits.seconds):
                found = await self._find(index, queries, k)
        except TimeoutError:
            raise HTTPException(
                504, f"no answer within {self._limits.seconds:g} seconds; ask for less at once"
            ) from None
        finally:
            self.waiting -= 1
        self.queries += len(queries)
        return found

    async def _find(self, index: Index, queries: Sequence[str], k: int) -> list[list[Passage]]:
        if index.batch > 1:  # it gathers what several requests ask, and answers in a thread of its own
            return await index.search(queries, k)
        found: list[list[Passage]] = []
        for start in range(0, len(queries), QUERIES_A_TURN):
            if start:
                await asyncio.sleep(0)  # others have their turn, and the time is looked at
            turn = queries[start : start + QUERIES_A_TURN]
            if self._seconds_a_query < WORTH_A_THREAD:
                found += self._turn(index, turn, k)
            else:
                found += await asyncio.get_running_loop().run_in_executor(self._threads, self._turn, index, turn, k)
        return found

    def _turn(self, index: Index, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """A few queries in one go; what they took of the processor decides where the next are answered. By the clock
        they would seem slow where others keep the cores busy, which is where a thread costs most."""
        started = time.thread_time()
        found = index.find(queries, k)
        if queries:  # a very long one counts as slow, and no more than that
            took = min((time.thread_time() - started) / len(queries), 2 * WORTH_A_THREAD)
            self._seconds_a_query += 0.1 * (took - self._seconds_a_query)
        return found


def _add_dialects(app: FastAPI, desk: _Desk) -> dict[str, Answer]:
    """Describe the dialects, and give what answers them."""

    async def retrieve(sent: bytes) -> object:
        body = read_body(RETRIEVE_BODY, sent)
        queries = [body.query] if isinstance(body, OneQuery) else body.queries
        found = await desk.search(queries, body.topk or TOP_K)
        shown = scored_documents if body.return_scores else documents
        return {"result": [shown(passages) for passages in found]}

    async def batch_search(sent: bytes) -> object:
        body = read_body(BATCH_SEARCH_BODY, sent)
        found = await desk.search(body.query, body.top_n)
        bare = [documents(passages) for passages in found]
        if not body.return_score:
            return bare
        return [bare, [[passage.score for passage in passages] for passages in found]]

    _describe(app, "/retrieve", "Search-R1, slime, SkyRL", (Queries, OneQuery), Results)
    _describe(app, "/batch_search", "ReSearch, FlashRAG", (BatchSearch,), Ranked)
    return {"/retrieve": retrieve, "/batch_search": batch_search}


def _describe(app: FastAPI, path: str, summary: str, bodies: Sequence[type[BaseModel]], answer: Any) -> None:
    """A dialect whose body is one of `bodies`, for /openapi.json and for who asks it in another way than POST; what is
    posted there is answered in front of the application."""
    shapes = [body.model_json_schema() for body in bodies]
    content = {"application/json": {"schema": {"oneOf": shapes} if len(shapes) > 1 else shapes[0]}}

    async def in_front() -> None:
        raise AssertionError(f"{path} is answered in front of the application")

    app.post(
        path,
        summary=summary,
        responses={200: {"model": answer}, **PROBLEMS},
        openapi_extra={"requestBody": {"required": True, "content": content}},
    )(in_front)


def _add_watching(app: FastAPI, opening: Opening, desk: _Desk, counters: Counters) -> None:
    @app.get("/health", responses={200: {"model": Health}, 503: {"model": Health}}, summary="Whether it can be asked")
    async def health() -> Response:
        status = "failed" if opening.error else "ready" if opening.index is not None else "opening"
        state = Health(status=status, progress=opening.progress, index=opening.card.as_json(), detail=opening.error)
        return _json(state.model_dump(), status=200 if status == "ready" else 503)

    @app.get(
        "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}}, summary="Prometheus"
    )
    async def metrics() -> Response:
        gauges = {
            "sleuth_requests_waiting": desk.waiting,
            "sleuth_ready": float(opening.index is not None),
            "sleuth_passages": opening.card.count,
        }
        text = counters.text(totals={"sleuth_queries_total": desk.queries}, gauges=gauges)
        return Response(text, media_type=CONTENT_TYPE)


def _tell_problems(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return _refusal(error.status_code, str(error.detail), error.headers)


def _refusal(status: int, detail: str, headers: Mapping[str, str] | None) -> Response:
    return JSONResponse({"detail": detail}, status, headers=headers)


def _json(content: object, status: int = 200) -> Response:
    return Response(to_json(content), status, media_type="application/json")


# What a framework does around an answer takes longer than an answer from a small index, so these paths are served as
# plain ASGI, and everything else by the application behind.

Answer = Callable[[bytes], Awaitable[object]]
"""From a body to what is sent back as JSON. May raise BodyError and HTTPException."""


class FastPathApp(FastAPI):
    """A FastAPI application some of whose POST paths (`straight`) are answered before it sees them."""

    def serve_fast(self, straight: Mapping[str, Answer], limits: Limits, counters: Counters) -> None:
        """Answer `straight` from now on. What is turned away counts too."""
        self._straight = dict(straight)
        self._limits = limits
        self._counters = counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._straight.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if answer is None:
            return await super().__call__(scope, receive, send)
        started = time.perf_counter()
        status, headers = 200, {}
        try:
            told = await answer(await read_whole(scope, receive, self._limits))
        except BodyError as error:
            status, told = 422, {"detail": str(error)}
        except HTTPException as error:
            status, told, headers = error.status_code, {"detail": error.detail}, error.headers or {}
        body = to_json(told)
        shown = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        shown += [(name.encode(), value.encode()) for name, value in headers.items()]
        self._counters.answered(scope["path"], status, time.perf_counter() - started)
        await send({"type": "http.response.start", "status": status, "headers": shown})
        await send({"type": "http.response.body", "body": body})
