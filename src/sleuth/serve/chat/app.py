"""The application of `sleuth serve`: a checkpoint in its environment behind OpenAI's API, and a web page."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from importlib.resources import files
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from sleuth import __version__
from sleuth.serve.chat.agent import Agent
from sleuth.serve.chat.answers import chat_completion, chat_stream, new_head, server_sent
from sleuth.serve.chat.conversation import Event as ConversationEvent
from sleuth.serve.chat.conversation import conversation
from sleuth.serve.chat.responses import ResponseWriter, response_stream
from sleuth.serve.chat.responses_wire import ResponseBody, ResponseRequest
from sleuth.serve.chat.wire import (
    ChatCompletion,
    ChatRequest,
    Health,
    Models,
    ProblemBody,
)
from sleuth.serve.http.access import Access, AccessControl
from sleuth.serve.http.counters import CONTENT_TYPE, CountAnswers, Counters
from sleuth.serve.http.engine_thread import EngineThread, Event
from sleuth.serve.http.event_stream import ClientDisconnected, EventStream, cancel_on_disconnect
from sleuth.serve.http.limits import BodyLimit, Limits, RequestLimit
from sleuth.serve.http.page_files import serve_file
from sleuth.serve.http.refused import TOO_LONG, Refused, problem_line, refusal, require_json

ASSETS = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/api.js": ("api.js", "text/javascript"),
    "/page.js": ("page.js", "text/javascript"),
}
PAGE_PATHS = tuple(ASSETS)


def add_page(app: FastAPI) -> None:
    """Adds the page at `/`, with its style and scripts."""
    for path, (name, kind) in ASSETS.items():
        content = files("sleuth.serve.chat").joinpath("assets", name).read_bytes()
        app.add_route(path, serve_file(content, kind), methods=["GET"], include_in_schema=False)


PATHS = (
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/models",
    "/health",
    "/metrics",
    "/openapi.json",
    *PAGE_PATHS,
)
UNREAD_SECONDS = 30.0  # for a slow client to read a stream, beyond the time to generate it
OTHER_REQUESTS = 64  # concurrent ones besides conversations: the page, /health, /metrics, uploads
CLIENT_LEFT_STATUS = 499  # only for the counters, by the convention of proxies

PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": ProblemBody, "description": "The request is invalid or needs an unsupported feature."},
    401: {"model": ProblemBody, "description": "The key is missing or wrong."},
    403: {"model": ProblemBody, "description": "Another host name or a page of another site."},
    404: {"model": ProblemBody, "description": "There is no such model."},
    408: {"model": ProblemBody, "description": "The body did not arrive in time."},
    413: {"model": ProblemBody, "description": "The body is too large."},
    415: {"model": ProblemBody, "description": "The content type is not JSON."},
    429: {"model": ProblemBody, "description": "Too many conversations are waiting."},
    503: {"model": ProblemBody, "description": "No slot was free in time, or the engine or the retriever failed."},
    504: {"model": ProblemBody, "description": "The conversation took too long."},
    "4XX": {"model": ProblemBody, "description": "Any other client error."},
}


def chat_app(agent: Agent, limits: Limits, *, conversations: int, access: Access) -> FastAPI:
    """The application: at most `conversations` concurrent conversations with `agent`. The page itself needs no key; it
    asks for the key. Every error is one line, in the format of OpenAI's API."""
    engine_thread = EngineThread(conversations, limits)

    @asynccontextmanager
    async def engine_runs(app: FastAPI) -> AsyncIterator[None]:
        engine_thread.start()
        yield
        await engine_thread.stop()

    app = FastAPI(
        title="sleuth serve",
        version=__version__,
        description="A model that searches, thinks and cites, behind OpenAI's API.",
        docs_url=None,  # those pages load scripts from other sites
        redoc_url=None,
        lifespan=engine_runs,
    )
    counters = Counters(PATHS)
    _add_error_handlers(app)
    _add_completion_routes(app, _RequestHandler(agent, engine_thread, limits))
    _add_monitoring(app, agent, engine_thread, counters)
    add_page(app)
    app.add_middleware(BodyLimit, limits=limits, refusal=refusal)
    app.add_middleware(RequestLimit, limit=conversations + limits.waiting + OTHER_REQUESTS)
    access = replace(access, open_paths=(*access.open_paths, *PAGE_PATHS))
    app.add_middleware(AccessControl, access=access, refusal=refusal)
    app.add_middleware(CountAnswers, counters=counters)  # outermost, to count refused requests too
    return app


class _RequestHandler:
    """Runs requests as conversations, and returns the answers."""

    def __init__(self, agent: Agent, engine_thread: EngineThread, limits: Limits) -> None:
        self._agent = agent
        self._engine_thread = engine_thread
        self._limits = limits
        self._numbers = itertools.count()

    async def chat(self, request: Request, body: ChatRequest) -> Response:
        events = self._conversation(body, "messages", body.token_limit)
        if not body.stream:
            heard = await cancel_on_disconnect(request, self._whole(events))
            return JSONResponse(chat_completion(heard, new_head("chatcmpl", "chat.completion", self._agent.name)))
        events = await cancel_on_disconnect(request, self._started(events))
        head = new_head("chatcmpl", "chat.completion.chunk", self._agent.name)
        return self._stream(server_sent(chat_stream(events, head, with_usage=body.with_usage)))

    async def respond(self, request: Request, body: ResponseRequest) -> Response:
        events = self._conversation(body, "input", body.max_output_tokens)
        response = ResponseWriter(body, self._agent.name)
        if body.stream:
            events = await cancel_on_disconnect(request, self._started(events))
            return self._stream(response_stream(events, response))
        for event in await cancel_on_disconnect(request, self._whole(events)):
            response.receive(event)
        return JSONResponse(response.body.model_dump())

    def _conversation(
        self, body: ChatRequest | ResponseRequest, field: str, max_tokens: int | None
    ) -> AsyncGenerator[ConversationEvent, None]:
        """The events of the answer to the question in `field`. Raises `Refused` for another model or a question that
        is far too long."""
        self._require_model(body.model)
        if len(body.question) > self._agent.max_characters:
            line = f"{field}: the question is longer than the context of {self._agent.context} tokens"
            raise Refused(400, line, param=field, code=TOO_LONG)
        return conversation(
            self._agent,
            body.question,
            field=field,
            temperature=body.temperature or 0.0,
            key=self._key(body.seed),
            max_tokens=max_tokens,
        )

    async def _whole(self, events: AsyncGenerator[Event, None]) -> list[Event]:
        async with aclosing(self._engine_thread.run(events)) as heard:
            return [event async for event in heard]

    async def _started(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        """The events, once the first has arrived: an error before it can still set the HTTP status."""
        heard = self._engine_thread.run(events)
        try:
            first = await anext(heard)
        except BaseException:
            await heard.aclose()
            raise
        return _from(first, heard)

    def _stream(self, events: AsyncGenerator[str, None]) -> Response:
        return EventStream(events, self._limits.seconds + UNREAD_SECONDS)

    def _require_model(self, name: str | None) -> None:
        if name is not None and name != self._agent.name:
            line = f"model: there is no {name[:100]!r} here; there is {self._agent.name!r}"
            raise Refused(404, line, param="model", code="model_not_found")

    def _key(self, seed: int | None) -> tuple[int, ...]:
        """The sampling key of a conversation: its seed, or a unique number."""
        return (0, next(self._numbers)) if seed is None else (1, seed)


async def _from(first: Event, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    async with aclosing(events):
        yield first
        async for event in events:
            yield event


def _add_completion_routes(app: FastAPI, handler: _RequestHandler) -> None:
    streamed = {"content": {"text/event-stream": {}}}

    @app.post(
        "/v1/chat/completions",
        summary="Ask the agent",
        dependencies=[Depends(require_json)],
        response_model=None,
        responses={200: {"model": ChatCompletion, **streamed}, **PROBLEMS},
    )
    async def chat(request: Request, body: ChatRequest) -> Response:
        return await handler.chat(request, body)

    @app.post(
        "/v1/responses",
        summary="Ask the agent, with citations as annotations",
        dependencies=[Depends(require_json)],
        response_model=None,
        responses={200: {"model": ResponseBody, **streamed}, **PROBLEMS},
    )
    async def respond(request: Request, body: ResponseRequest) -> Response:
        return await handler.respond(request, body)


def _add_monitoring(app: FastAPI, agent: Agent, engine_thread: EngineThread, counters: Counters) -> None:
    model = {
        "id": agent.name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sleuth",
        "sleuth": dict(agent.facts),
    }

    @app.get("/v1/models", response_model=None, responses={200: {"model": Models}}, summary="The one model")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [model]})

    @app.get(
        "/health",
        response_model=None,
        responses={200: {"model": Health}, 503: {"model": Health}},
        summary="Whether the server is ready",
    )
    async def health() -> Response:
        state = Health(
            status="ready" if engine_thread.is_open else "failed",
            model=agent.name,
            conversations=engine_thread.admission.active,
            waiting=engine_thread.admission.waiting,
        )
        return JSONResponse(state.model_dump(), 200 if engine_thread.is_open else 503)

    @app.get(
        "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}}, summary="Prometheus"
    )
    async def metrics() -> Response:
        gauges = {
            "sleuth_ready": float(engine_thread.is_open),
            "sleuth_conversations": engine_thread.admission.active,
            "sleuth_conversations_waiting": engine_thread.admission.waiting,
        }
        text = counters.text(totals={"sleuth_conversations_total": engine_thread.admission.admitted}, gauges=gauges)
        return Response(text, media_type=CONTENT_TYPE)


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def wrong_body(request: Request, error: RequestValidationError) -> Response:
        problem = error.errors()[0]
        if problem["type"] == "json_invalid":
            return refusal(400, f"body: not JSON ({problem['ctx']['error']})")
        where = [part for part in problem["loc"] if part != "body"]
        return Refused(400, problem_line(problem, unnamed=("body",)), param=str(where[0]) if where else None).response()

    @app.exception_handler(HTTPException)
    async def wrong_request(request: Request, error: HTTPException) -> Response:
        return refusal(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(ClientDisconnected)
    async def left(request: Request, error: ClientDisconnected) -> Response:
        return Response(status_code=CLIENT_LEFT_STATUS)
