"""The application of `sleuth serve`: a checkpoint in its environment behind OpenAI's API, and a web page."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

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
from sleuth.serve.http.access import Access, Gate, Limits
from sleuth.serve.http.engine_thread import ClientDisconnected, EngineThread, Event, EventStream, cancel_on_disconnect
from sleuth.serve.http.refused import TOO_LONG, Refused, read_json, refused_answer
from sleuth.serve.http.routes import CONTENT_TYPE, TEXT, Counters, Operation, file_route, routes_of

ASSETS = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/api.js": ("api.js", "text/javascript"),
    "/page.js": ("page.js", "text/javascript"),
}
"""The files of the page, by their paths."""
PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/models", "/health", "/metrics", "/openapi.json", *ASSETS)
UNREAD_SECONDS = 30.0  # for a slow client to read a stream, beyond the time to generate it
OTHER_REQUESTS = 64  # concurrent ones besides conversations: the page, /health, /metrics, uploads
CLIENT_LEFT_STATUS = 499  # only for the counters, by the convention of proxies

PROBLEMS: dict[int | str, tuple[Any, str]] = {
    400: (ProblemBody, "The request is invalid or needs an unsupported feature."),
    401: (ProblemBody, "The key is missing or wrong."),
    403: (ProblemBody, "Another host name or a page of another site."),
    404: (ProblemBody, "There is no such model."),
    408: (ProblemBody, "The body did not arrive in time."),
    413: (ProblemBody, "The body is too large."),
    415: (ProblemBody, "The content type is not JSON."),
    429: (ProblemBody, "Too many conversations are waiting."),
    503: (ProblemBody, "No slot was free in time, or the engine or the retriever failed."),
    504: (ProblemBody, "The conversation took too long."),
    "4XX": (ProblemBody, "Any other client error."),
}


def chat_app(agent: Agent, limits: Limits, *, conversations: int, access: Access) -> Starlette:
    """The application: at most `conversations` concurrent conversations with `agent`. The page itself needs no key; it
    asks for the key. Every error is one line, in the format of OpenAI's API."""
    engine_thread = EngineThread(conversations, limits)

    @asynccontextmanager
    async def engine_runs(app: Starlette) -> AsyncIterator[None]:
        engine_thread.start()
        yield
        await engine_thread.stop()

    counters = Counters(PATHS)
    handler = _RequestHandler(agent, engine_thread, limits)
    routes = routes_of(
        [*_completions(handler), *_monitoring(agent, engine_thread, counters)],
        title="sleuth serve",
        description="A model that searches, thinks and cites, behind OpenAI's API.",
    )
    assets = files("sleuth.serve.chat").joinpath("assets")
    page = [file_route(path, assets.joinpath(name).read_bytes(), kind) for path, (name, kind) in ASSETS.items()]
    gate = Middleware(
        Gate,
        access=replace(access, open_paths=(*access.open_paths, *ASSETS)),
        limits=limits,
        most=conversations + limits.waiting + OTHER_REQUESTS,
        counters=counters,
    )
    return Starlette(
        routes=[*routes, *page],
        middleware=[gate],
        exception_handlers={HTTPException: refused_answer, ClientDisconnected: _left},
        lifespan=engine_runs,
    )


class _RequestHandler:
    """Runs requests as conversations, and returns the answers."""

    def __init__(self, agent: Agent, engine_thread: EngineThread, limits: Limits) -> None:
        self._agent = agent
        self._engine_thread = engine_thread
        self._limits = limits
        self._numbers = itertools.count()

    async def chat(self, request: Request) -> Response:
        body = await read_json(request, ChatRequest)
        events = self._conversation(body, "messages", body.token_limit)
        if not body.stream:
            heard = await cancel_on_disconnect(request, self._whole(events))
            return JSONResponse(chat_completion(heard, new_head("chatcmpl", "chat.completion", self._agent.name)))
        events = await cancel_on_disconnect(request, self._started(events))
        head = new_head("chatcmpl", "chat.completion.chunk", self._agent.name)
        return self._stream(server_sent(chat_stream(events, head, with_usage=body.with_usage)))

    async def respond(self, request: Request) -> Response:
        body = await read_json(request, ResponseRequest)
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


def _completions(handler: _RequestHandler) -> list[Operation]:
    streams = ("text/event-stream",)
    return [
        Operation(
            path="/v1/chat/completions",
            summary="Ask the agent",
            respond=handler.chat,
            bodies=(ChatRequest,),
            answers={200: (ChatCompletion, "The answer."), **PROBLEMS},
            other_kinds=streams,
        ),
        Operation(
            path="/v1/responses",
            summary="Ask the agent, with citations as annotations",
            respond=handler.respond,
            bodies=(ResponseRequest,),
            answers={200: (ResponseBody, "The answer."), **PROBLEMS},
            other_kinds=streams,
        ),
    ]


def _monitoring(agent: Agent, engine_thread: EngineThread, counters: Counters) -> list[Operation]:
    model = {
        "id": agent.name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sleuth",
        "sleuth": dict(agent.facts),
    }

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model]})

    async def health(request: Request) -> Response:
        state = Health(
            status="ready" if engine_thread.is_open else "failed",
            model=agent.name,
            conversations=engine_thread.admission.active,
            waiting=engine_thread.admission.waiting,
        )
        return JSONResponse(state.model_dump(), 200 if engine_thread.is_open else 503)

    async def metrics(request: Request) -> Response:
        gauges = {
            "sleuth_ready": float(engine_thread.is_open),
            "sleuth_conversations": engine_thread.admission.active,
            "sleuth_conversations_waiting": engine_thread.admission.waiting,
        }
        text = counters.text(totals={"sleuth_conversations_total": engine_thread.admission.admitted}, gauges=gauges)
        return Response(text, media_type=CONTENT_TYPE)

    ready: dict[int | str, tuple[Any, str]] = {200: (Health, "It is ready."), 503: (Health, "It failed.")}
    return [
        Operation(path="/v1/models", summary="The one model", respond=models, answers={200: (Models, "The model.")}),
        Operation(path="/health", summary="Whether the server is ready", respond=health, answers=ready),
        Operation(path="/metrics", summary="Prometheus", respond=metrics, answers={}, other_kinds=(TEXT,)),
    ]


async def _left(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_LEFT_STATUS)
