"""The application of `sleuth serve`: a checkpoint in its environment behind OpenAI's API, and a web page."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from importlib.resources import files
from typing import Any, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sleuth.episodes.agent_answers import chat_answer, new_head, response_answer
from sleuth.episodes.agent_messages import BadRequestError, chat_request, response_request
from sleuth.serve.access import Access, Gate, Limits, file_route
from sleuth.serve.agent import Agent
from sleuth.serve.answers import chat_completion, chat_stream
from sleuth.serve.conversation import Event as ConversationEvent
from sleuth.serve.conversation import conversation, turn
from sleuth.serve.engine_thread import ClientDisconnected, EngineThread, Event, EventStream, cancel_on_disconnect
from sleuth.serve.refused import TOO_LONG, Refused, read_json, refused_answer
from sleuth.serve.wire import ChatRequest, TurnRequest
from sleuth.types import SleuthError

ASSETS = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/api.js": ("api.js", "text/javascript"),
    "/page.js": ("page.js", "text/javascript"),
}
"""The files of the page, by their paths."""
UNREAD_SECONDS = 30.0  # for a slow client to read a stream, beyond the time to generate it
OTHER_REQUESTS = 64  # concurrent ones besides conversations: the page, /health, uploads
CLIENT_LEFT_STATUS = 499  # by the convention of proxies


def chat_app(agent: Agent, limits: Limits, *, conversations: int, access: Access) -> Starlette:
    """The application: at most `conversations` concurrent conversations with `agent`. The page itself needs no key; it
    asks for the key. Every error is one line, in the format of OpenAI's API."""
    engine_thread = EngineThread(conversations, limits)

    @asynccontextmanager
    async def engine_runs(app: Starlette) -> AsyncIterator[None]:
        engine_thread.start()
        yield
        await engine_thread.stop()

    handler = _RequestHandler(agent, engine_thread, limits)
    routes = [
        Route("/v1/chat/completions", handler.chat, methods=["POST"]),
        Route("/v1/responses", handler.respond, methods=["POST"]),
        *_monitoring(agent, engine_thread),
    ]
    assets, elements = files("sleuth.serve") / "assets", files("sleuth.report") / "templates" / "elements.js"
    before = {"/page.js": elements.read_bytes()}
    page = [
        file_route(path, before.get(path, b"") + (assets / name).read_bytes(), kind)
        for path, (name, kind) in ASSETS.items()
    ]
    gate = Middleware(
        Gate,
        access=replace(access, open_paths=(*access.open_paths, *ASSETS)),
        limits=limits,
        most=conversations + limits.waiting + OTHER_REQUESTS,
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
        if self._agent.requests is not None:
            return await self._turn(request, chat_request, chat_answer)
        body = await read_json(request, ChatRequest)
        events = self._conversation(body)
        if not body.stream:
            heard = await cancel_on_disconnect(request, self._whole(events))
            return JSONResponse(chat_completion(heard, new_head("chat.completion", self._agent.name)))
        events = await cancel_on_disconnect(request, self._started(events))
        head = new_head("chat.completion.chunk", self._agent.name)
        return self._stream(chat_stream(events, head, with_usage=body.with_usage))

    async def respond(self, request: Request) -> Response:
        if self._agent.requests is None:
            raise Refused(404, "this model is asked by POST /v1/chat/completions; responses are of models of agents")
        return await self._turn(request, response_request, response_answer)

    async def _turn(self, request: Request, read: Any, answer: Any) -> Response:
        """The model's turn after a whole history, as the user's own agent asks for it."""
        body = await read_json(request, TurnRequest)
        self._require_model(body.model)
        given = {**body.model_dump(), "model": self._agent.name}
        try:
            env = cast("Any", self._agent.requests)(read(given, self._agent.name))
        except (BadRequestError, SleuthError, ValueError, RecursionError) as error:  # such as a template without tools
            raise Refused(400, str(error)) from None
        except (AttributeError, TypeError) as error:
            raise Refused(400, f"the body has not the form of OpenAI's API: {error}") from None
        events = turn(self._agent, env, temperature=body.temperature or 0.0, key=self._key(body.seed))
        [said] = await cancel_on_disconnect(request, self._whole(events))
        return answer(said, given, self._agent.name)

    def _conversation(self, body: ChatRequest) -> AsyncGenerator[ConversationEvent, None]:
        """The events of the answer to a question. Raises `Refused` for another model or a question that is far too
        long."""
        self._require_model(body.model)
        if len(body.question) > self._agent.max_characters:
            line = f"messages: the question is longer than the context of {self._agent.context} tokens"
            raise Refused(400, line, param="messages", code=TOO_LONG)
        return conversation(
            self._agent,
            body.question,
            field="messages",
            temperature=body.temperature or 0.0,
            key=self._key(body.seed),
            max_tokens=body.token_limit,
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


def _monitoring(agent: Agent, engine_thread: EngineThread) -> list[Route]:
    facts = {"created": int(time.time()), "owned_by": "sleuth", "sleuth": dict(agent.facts)}
    model = {"id": agent.name, "object": "model", **facts}

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model]})

    async def health(request: Request) -> Response:
        admission, status = engine_thread.admission, "ready" if engine_thread.is_open else "failed"
        state = {"status": status, "model": agent.name}
        state |= {"conversations": admission.active, "waiting": admission.waiting}
        return JSONResponse(state, 200 if engine_thread.is_open else 503)

    return [Route("/v1/models", models), Route("/health", health)]


async def _left(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_LEFT_STATUS)
