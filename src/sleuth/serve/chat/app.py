"""`sleuth serve`: a checkpoint in its environment behind OpenAI's API, and a page to talk to it."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing, asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from sleuth import __version__
from sleuth.serve.chat.agent import Agent
from sleuth.serve.chat.answers import chat_stream, new_head, server_sent, whole_answer
from sleuth.serve.chat.completions import Continuation
from sleuth.serve.chat.conversation import conversation
from sleuth.serve.chat.wire import (
    ChatCompletion,
    ChatRequest,
    CompletionRequest,
    Health,
    Models,
    ProblemBody,
    TextCompletion,
    prompt_shape,
)
from sleuth.serve.http.counters import CONTENT_TYPE, CountAnswers, Counters
from sleuth.serve.http.engine_thread import EngineThread, Event
from sleuth.serve.http.event_stream import ClientLeft, EventStream, unless_left
from sleuth.serve.http.known_host import KnownHost
from sleuth.serve.http.limits import BodyLimit, Limits, RequestLimit
from sleuth.serve.http.refused import TOO_LONG, Refused, problem_line, refusal

ASSETS = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/asking.js": ("asking.js", "text/javascript"),
    "/page.js": ("page.js", "text/javascript"),
}
PAGE_PATHS = tuple(ASSETS)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """The page at `/`, with its style and scripts."""
    for path, (name, kind) in ASSETS.items():
        content = files("sleuth.serve.chat").joinpath("assets", name).read_bytes()
        app.add_route(path, _shown(content, kind), methods=["GET"], include_in_schema=False)


def _shown(content: bytes, kind: str):
    async def show(request: Request) -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return show


PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/models",
    "/health",
    "/metrics",
    "/openapi.json",
    *PAGE_PATHS,
)
UNREAD_SECONDS = 30.0  # that a client may be behind with what was written, beyond the time to write it
OTHER_REQUESTS = 64  # at once, beyond those of conversations: the page, /health, /metrics, bodies that still arrive
LEFT = 499  # nobody reads it; it is for the counters, under the name that proxies use

PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": ProblemBody, "description": "The request is wrong, or asks for what is not supported."},
    404: {"model": ProblemBody, "description": "There is no such model."},
    408: {"model": ProblemBody, "description": "The body did not arrive in time."},
    413: {"model": ProblemBody, "description": "The body is too large."},
    415: {"model": ProblemBody, "description": "The body is not said to be JSON."},
    429: {"model": ProblemBody, "description": "Too many conversations wait already."},
    503: {"model": ProblemBody, "description": "No place was free, or the engine or the retriever failed."},
    504: {"model": ProblemBody, "description": "The conversation took too long."},
    "4XX": {"model": ProblemBody, "description": "Anything else that is wrong with a request."},
}


def chat_app(agent: Agent, limits: Limits, *, conversations: int, hosts: Collection[str] | None) -> FastAPI:
    """The application: at most `conversations` conversations with `agent` at once. `hosts` are the names it answers to;
    None is any. Every problem is one line, in the shape of OpenAI's API."""
    room = EngineThread(conversations, limits)

    @asynccontextmanager
    async def engine_runs(app: FastAPI) -> AsyncIterator[None]:
        room.start()
        yield
        await room.stop()

    app = FastAPI(
        title="sleuth serve",
        version=__version__,
        description="A model that searches, thinks and cites, behind OpenAI's API.",
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        lifespan=engine_runs,
    )
    counters = Counters(PATHS)
    _tell_problems(app)
    _add_conversations(app, _Desk(agent, room, limits))
    _add_watching(app, agent, room, counters)
    add_page(app)
    _describe_tokens(app, len(agent.renderer.tokenizer))
    app.add_middleware(BodyLimit, limits=limits, refusal=refusal)
    if hosts is not None:
        app.add_middleware(KnownHost, names=hosts)
    app.add_middleware(RequestLimit, most=conversations + limits.waiting + OTHER_REQUESTS)
    app.add_middleware(CountAnswers, counters=counters)  # outermost: what is turned away counts too
    return app


class _Desk:
    """Where requests become conversations, and conversations answers."""

    def __init__(self, agent: Agent, room: EngineThread, limits: Limits) -> None:
        self._agent = agent
        self._room = room
        self._limits = limits
        self._numbers = itertools.count()

    async def chat(self, request: Request, asked: ChatRequest) -> Response:
        self._require_model(asked.model)
        if len(asked.question) > self._agent.characters:
            line = f"messages: the question is longer than the context of {self._agent.context} tokens"
            raise Refused(400, line, param="messages", code=TOO_LONG)
        events = conversation(
            self._agent,
            asked.question,
            temperature=asked.temperature or 0.0,
            key=self._key(asked.seed),
            max_tokens=asked.most_tokens,
        )
        if not asked.stream:
            heard = await unless_left(request, self._whole(events))
            return JSONResponse(whole_answer(heard, new_head("chatcmpl", "chat.completion", self._agent.name)))
        begun = await unless_left(request, self._begun(events))
        head = new_head("chatcmpl", "chat.completion.chunk", self._agent.name)
        return self._stream(chat_stream(begun, head, with_usage=_wants_usage(asked)))

    async def complete(self, request: Request, asked: CompletionRequest) -> Response:
        self._require_model(asked.model)
        if isinstance(asked.prompt, str) and len(asked.prompt) > self._agent.characters:
            line = f"prompt: it is longer than the context of {self._agent.context} tokens"
            raise Refused(400, line, param="prompt", code=TOO_LONG)
        continuation = Continuation(self._agent, asked, self._key(asked.seed))
        head = new_head("cmpl", "text_completion", self._agent.name)
        if not asked.stream:
            heard = await unless_left(request, self._whole(continuation.chunks()))
            return JSONResponse(continuation.whole(heard, head))
        begun = await unless_left(request, self._begun(continuation.chunks()))
        return self._stream(continuation.stream(begun, head, with_usage=_wants_usage(asked)))

    async def _whole(self, events: AsyncGenerator[Event, None]) -> list[Event]:
        async with aclosing(self._room.hear(events)) as heard:
            return [event async for event in heard]

    async def _begun(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        """The events, the first of which has happened: what goes wrong before it is told by a status."""
        heard = self._room.hear(events)
        try:
            first = await anext(heard)
        except BaseException:
            await heard.aclose()
            raise
        return _from(first, heard)

    def _stream(self, chunks: AsyncGenerator[dict[str, Any], None]) -> Response:
        return EventStream(server_sent(chunks), self._limits.seconds + UNREAD_SECONDS)

    def _require_model(self, name: str | None) -> None:
        if name is not None and name != self._agent.name:
            line = f"model: there is no {name[:100]!r} here; there is {self._agent.name!r}"
            raise Refused(404, line, param="model", code="model_not_found")

    def _key(self, seed: int | None) -> tuple[int, ...]:
        """Names the draws of a conversation: by its seed, or by its number, so that no two are alike."""
        return (0, next(self._numbers)) if seed is None else (1, seed)


async def _from(first: Event, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    async with aclosing(events):
        yield first
        async for event in events:
            yield event


def _wants_usage(asked: ChatRequest | CompletionRequest) -> bool:
    return asked.stream_options is not None and bool(asked.stream_options.include_usage)


def _add_conversations(app: FastAPI, desk: _Desk) -> None:
    streamed = {"content": {"text/event-stream": {}}}

    @app.post(
        "/v1/chat/completions",
        summary="Ask the agent",
        dependencies=[Depends(_require_json)],
        response_model=None,
        responses={200: {"model": ChatCompletion, **streamed}, **PROBLEMS},
    )
    async def chat(request: Request, asked: ChatRequest) -> Response:
        return await desk.chat(request, asked)

    @app.post(
        "/v1/completions",
        summary="Let the model go on with a text",
        dependencies=[Depends(_require_json)],
        response_model=None,
        responses={200: {"model": TextCompletion, **streamed}, **PROBLEMS},
    )
    async def complete(request: Request, asked: CompletionRequest) -> Response:
        return await desk.complete(request, asked)


def _describe_tokens(app: FastAPI, count: int) -> None:
    """So many tokens there are: only the model can tell which ids a prompt may hold."""
    request = app.openapi()["components"]["schemas"][CompletionRequest.__name__]
    request["properties"]["prompt"] |= prompt_shape(count - 1)


def _add_watching(app: FastAPI, agent: Agent, room: EngineThread, counters: Counters) -> None:
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
        summary="Whether it can be asked",
    )
    async def health() -> Response:
        state = Health(
            status="ready" if room.is_open else "failed",
            model=agent.name,
            conversations=room.admission.taken,
            waiting=room.admission.waiting,
        )
        return JSONResponse(state.model_dump(), 200 if room.is_open else 503)

    @app.get(
        "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}}, summary="Prometheus"
    )
    async def metrics() -> Response:
        gauges = {
            "sleuth_ready": float(room.is_open),
            "sleuth_conversations": room.admission.taken,
            "sleuth_conversations_waiting": room.admission.waiting,
        }
        text = counters.text(totals={"sleuth_conversations_total": room.admission.given}, gauges=gauges)
        return Response(text, media_type=CONTENT_TYPE)


async def _require_json(request: Request) -> None:
    """A page elsewhere may send text to this machine without asking; JSON it may not."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "content-type: expected application/json")


def _tell_problems(app: FastAPI) -> None:
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

    @app.exception_handler(ClientLeft)
    async def left(request: Request, error: ClientLeft) -> Response:
        return Response(status_code=LEFT)
