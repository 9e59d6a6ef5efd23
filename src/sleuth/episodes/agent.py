"""Agents of the user's: a function plays each episode by calling the policy through an OpenAI-compatible endpoint.

The endpoint serves this process alone, on a free port of the loopback address, and knows an episode by its key. A
request is the environment's next reply, and the policy's turn is its answer, so an agent is played, recorded and
trained by the rollout loop that plays every environment.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import socket
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, ClassVar

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from transformers import PreTrainedTokenizerFast

from sleuth.dialect import dialect_of
from sleuth.episodes.agent_messages import (
    MODEL,
    Asked,
    BadRequestError,
    History,
    Turn,
    chat_request,
    response_request,
)
from sleuth.episodes.chat_template import KEPT, ChatTemplate
from sleuth.episodes.function import env_code_in, failed
from sleuth.episodes.protocol import AGENT
from sleuth.episodes.setting import Setting
from sleuth.host.escapes import replace_surrogates
from sleuth.own.calls import Caller, delaying_engine, finite_number, shown_value
from sleuth.own.functions import UserCodeError, load_function, require_arguments
from sleuth.rollout import EPISODES_AT_ONCE
from sleuth.types import Action, Env, EpisodeKey, Reply, Score, SleuthError, StopReason, Task

if TYPE_CHECKING:
    from sleuth.episodes.tables import AgentEnvRecipe

MAX_BODY = 16 * 2**20
"""Bytes of a request."""
ENDED = "the episode has ended"
TOGETHER = "; the policy writes when all agents have asked, so none may wait for another or block its event loop"
Json = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Pending:
    """A request that waits for the policy."""

    asked: Asked
    answer: Future[Turn] = field(default_factory=Future)


class AgentEnv:
    """The environment of one episode that an agent plays: `make(task, base_url, api_key, **parameters)` returns its
    answer or its score.

    The agent's own time between an answer and its next request is limited to `seconds`, and its requests to `calls`. If
    it raises, takes too long or returns something else, the episode ends as `failed`, and its score is missing.
    """

    def __init__(self, task: Task, setting: AgentSetting) -> None:
        self.task = task
        self.setting = setting
        self.history = History(dialect=setting.dialect, template=setting.template_with)
        self.calls = 0
        self.pending: Pending | None = None
        self.last: Turn | None = None
        self._score: Score | None = Score(value=0.0)
        self._received: list[Pending] = []
        self._ended = False
        self._lock = Lock()  # of the two above, which the thread of the endpoint reads too

    async def open(self) -> Reply:
        self._loop = asyncio.get_running_loop()
        self._requests = asyncio.Queue[Pending]()
        endpoint = endpoint_of_process()
        self._key = endpoint.add(self)
        call = self.setting.make(self.task, endpoint.url, self._key, **self.setting.parameters)
        self._agent = asyncio.ensure_future(call)
        return await self._next()

    async def reply(self, text: str, stop: StopReason) -> Reply:
        assert self.pending is not None  # a turn answers a request
        self.last = self.history.written(text, stop)
        self.pending.answer.set_result(self.last)
        return await self._next()

    async def score(self) -> Score | None:
        """The number that the agent returned, 0 where the context was full before it did; None of an answer."""
        return self._score

    async def close(self) -> None:
        """Ends the agent, whose requests get no answer any more."""
        endpoint_of_process().remove(self._key)
        with self._lock:
            self._ended = True
        for pending in self._received:
            if not pending.answer.done():
                pending.answer.set_exception(BadRequestError(ENDED))
        self._agent.cancel()
        await asyncio.gather(self._agent, return_exceptions=True)

    def receive(self, pending: Pending) -> None:
        """Takes a request from the thread of the endpoint. Raises BadRequestError if the episode has ended."""
        with self._lock:
            if self._ended:
                raise BadRequestError(ENDED)
            self._received.append(pending)
            self._loop.call_soon_threadsafe(self._requests.put_nowait, pending)

    async def _next(self) -> Reply:
        """The reply that the agent's next request is, or the end of the episode."""
        with delaying_engine():  # else it would go on with other batches in each run
            request = asyncio.ensure_future(self._requests.get())
            await asyncio.wait(
                {request, self._agent}, timeout=self.setting.seconds, return_when=asyncio.FIRST_COMPLETED
            )
        if self._agent.done():
            request.cancel()
            return self._end()
        if not request.done():
            request.cancel()
            late = f"neither asked nor returned within {self.setting.seconds:g} seconds"
            return failed(self.setting.make.function.error(f"{late}{TOGETHER}"))
        self.pending = request.result()
        self.calls += 1
        if self.calls > self.setting.calls:
            return failed(self.setting.make.function.error(f"asked more than calls = {self.setting.calls} times"))
        try:
            framed = self.history.framed(self.pending.asked)
        except (SleuthError, ValueError, RecursionError) as error:  # such as a template without tools
            self.pending.answer.set_exception(BadRequestError(str(error)))
            return await self._next()
        limit = self.setting.turn_tokens
        return Reply(
            pieces=framed.pieces,
            restarts=framed.restarts,
            action=self._action(self.pending.asked),
            max_tokens=min(limit, self.pending.asked.max_tokens or limit),
            stops=self.pending.asked.stops,
        )

    def _action(self, asked: Asked) -> Action | None:
        """The calls of the last turn, with their results as far as the request has them."""
        if self.last is None or not self.last.calls:
            return None
        results = {one.answers: one.text for one in asked.said if one.answers}
        calls = [{"name": call.name, "arguments": call.arguments} for call in self.last.calls]
        found = [results[call.id] for call in self.last.calls if call.id in results]
        text = json.dumps(calls[0] if len(calls) == 1 else calls, ensure_ascii=False)
        return Action(kind="call", text=text, result="\n".join(found) if found else None)

    def _end(self) -> Reply:
        function = self.setting.make.function
        try:
            returned = self._agent.result()
            if self.last is None:
                raise function.error("returned without asking the model")
            if isinstance(returned, str):
                self._score = None
                return Reply(action=Action(kind="answer", text=replace_surrogates(returned.strip())), done="answered")
            if (value := finite_number(returned)) is not None:
                self._score = Score(value=value)
                return Reply(action=Action(kind="answer", text=self.last.text), done="answered")
            raise function.error(f"returned {shown_value(returned)}; expected an answer (text) or a score (a number)")
        except UserCodeError as error:
            return failed(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSetting(Setting):
    """What the episodes of an agent share. The dialect has the tags of thoughts and calls that the model writes."""

    parameters: Mapping[str, Any]
    make: Caller
    tokenizer: PreTrainedTokenizerFast | None
    flags: Mapping[str, Any]
    seconds: float
    calls: int
    turn_tokens: int
    templates: dict[str, ChatTemplate] = field(default_factory=dict, compare=False)

    longest_answer_key: ClassVar[str] = "env.turn_tokens"

    def env(self, task: Task, key: EpisodeKey = (0, 0)) -> Env:
        return AgentEnv(task, self)

    @property
    def opening(self) -> str:
        """Unknown without an agent."""
        return ""

    def template_with(self, tools: tuple[Mapping[str, Any], ...]) -> ChatTemplate:
        """The chat template with these tools. Raises SleuthError if it cannot show them."""
        assert self.tokenizer is not None  # only a check has none, and plays nothing
        name = json.dumps(tools, sort_keys=True)
        if name not in self.templates:
            if len(self.templates) >= KEPT:
                self.templates.clear()
            self.templates[name] = ChatTemplate(self.tokenizer, flags=self.flags, tools=tools)
        return self.templates[name]


def agent_setting(env: AgentEnvRecipe, tokenizer: PreTrainedTokenizerFast | None) -> AgentSetting:
    """The user's agent. Raises UserCodeError if there is none, or if it cannot be called with a task, a URL and a
    key."""
    function = load_function(env.function, env.files)
    require_arguments(function, 3, env.parameters, f"{function.short_name}(task, base_url, api_key)")
    return AgentSetting(
        dialect=replace(dialect_of(env.dialect), turn_tokens=env.turn_tokens),
        prompt_name=AGENT,
        prompt="",
        prompt_role="raw",
        template=None,
        own_code=env_code_in(env),
        parameters=env.parameters,
        make=Caller(function, seconds=math.inf, at_once=EPISODES_AT_ONCE),
        tokenizer=tokenizer,
        flags=env.template_flags,
        seconds=env.seconds,
        calls=env.calls,
        turn_tokens=env.turn_tokens,
    )


# -- the endpoint ------------------------------------------------------------------------------------------------------


class Endpoint:
    """Chat completions and responses for the episodes that are under way. `url` ends with `/v1`."""

    def __init__(self) -> None:
        self._episodes: dict[str, AgentEnv] = {}
        app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/responses", self._respond, methods=["POST"]),
                Route("/v1/models", self._models),
            ]
        )
        with suppress(ImportError, OSError, ValueError):  # an episode takes two files, and many shells allow 1,024
            import resource

            limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit, min(most, 8 * EPISODES_AT_ONCE)), most))
        listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        config = uvicorn.Config(
            app, log_level="error", access_log=False, ws="none", lifespan="off", timeout_keep_alive=60
        )
        server = uvicorn.Server(config)  # which takes no signals outside the main thread
        Thread(target=server.run, kwargs={"sockets": [listening]}, name="agents", daemon=True).start()

    def add(self, env: AgentEnv) -> str:
        """A key for an episode."""
        key = secrets.token_urlsafe(16)
        self._episodes[key] = env
        return key

    def remove(self, key: str) -> None:
        """Requests with this key are refused from now on."""
        self._episodes.pop(key, None)

    async def _models(self, request: Any) -> Any:
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _chat(self, request: Any) -> Any:
        return await self._answered(request, chat_request, chat_completion, chat_chunks)

    async def _respond(self, request: Any) -> Any:
        return await self._answered(request, response_request, response_object, response_events)

    async def _answered(self, request: Any, read: Any, whole: Any, pieces: Any) -> Any:
        env = self._episodes.get(request.headers.get("authorization", "").removeprefix("Bearer "))
        if env is None:
            return _refused(401, "no episode under way has this key: use the api_key that the agent was called with")
        try:
            body = json.loads(await _body(request))
            if not isinstance(body, dict):
                raise BadRequestError("the body should be a JSON object")
            pending = Pending(asked=read(body))
            env.receive(pending)
            turn = await asyncio.wrap_future(pending.answer)
        except (BadRequestError, ValueError, RecursionError) as error:
            return _refused(400, str(error))
        except (AttributeError, TypeError) as error:
            return _refused(400, f"the body has not the form of OpenAI's API: {error}")
        answer = whole(turn)
        if body.get("stream"):
            lines = [_event(event) for event in pieces(answer)]
            done = [] if "output" in answer else ["data: [DONE]\n\n"]
            return Response("".join([*lines, *done]), media_type="text/event-stream")
        return JSONResponse(answer)


@cache
def endpoint_of_process() -> Endpoint:
    """The endpoint, which is started when the first episode opens."""
    return Endpoint()


async def _body(request: Any) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise BadRequestError(f"the request has more than {MAX_BODY:,} bytes")
    return bytes(body)


def _refused(status: int, reason: str) -> Any:
    return JSONResponse({"error": {"message": reason, "type": "invalid_request_error"}}, status_code=status)


def _event(event: Json) -> str:
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n"


def chat_completion(turn: Turn) -> Json:
    """A turn as the answer of chat completions."""
    message: Json = {"role": "assistant", "content": turn.text or (None if turn.calls else "")}
    if turn.thought:
        message["reasoning_content"] = turn.thought
    if turn.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in turn.calls
        ]
    reason = "length" if turn.stop == "length" else "tool_calls" if turn.calls else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    head = {"id": f"chatcmpl-{secrets.token_hex(8)}", "object": "chat.completion", "created": int(time.time())}
    return {**head, "model": MODEL, "choices": [choice]}


def chat_chunks(answer: Json) -> list[Json]:
    """The same as a stream: one chunk of all that was written, and one of why it ended."""
    [choice] = answer["choices"]
    delta = dict(choice["message"])
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": at, **call} for at, call in enumerate(calls)]
    head = {**answer, "object": "chat.completion.chunk"}
    ends = ((delta, None), ({}, choice["finish_reason"]))
    return [{**head, "choices": [{"index": 0, "delta": part, "finish_reason": end}]} for part, end in ends]


def response_object(turn: Turn) -> Json:
    """A turn as the answer of responses."""
    name = secrets.token_hex(8)
    output: list[Json] = []
    if turn.text or not turn.calls:
        content = [{"type": "output_text", "text": turn.text, "annotations": []}]
        output.append(
            {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed", "content": content}
        )
    for call in turn.calls:
        function = {"call_id": call.id, "name": call.name, "arguments": call.arguments, "status": "completed"}
        output.append({"type": "function_call", "id": f"fc_{name}_{call.id}", **function})
    cut = turn.stop == "length"
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": int(time.time()),
        "model": MODEL,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "output": output,
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
    }


def response_events(answer: Json) -> list[Json]:
    """The same as a stream of events."""
    events: list[Json] = [{"type": "response.created", "response": {**answer, "output": [], "status": "in_progress"}}]
    for at, item in enumerate(answer["output"]):
        events.append({"type": "response.output_item.added", "output_index": at, "item": item})
        for part in item.get("content", ()):
            place = {"item_id": item["id"], "output_index": at, "content_index": 0, "logprobs": []}
            events.append({"type": "response.output_text.delta", "delta": part["text"], **place})
            events.append({"type": "response.output_text.done", "text": part["text"], **place})
        events.append({"type": "response.output_item.done", "output_index": at, "item": item})
    end = "response.incomplete" if answer["status"] == "incomplete" else "response.completed"
    events.append({"type": end, "response": answer})
    return [{**event, "sequence_number": at} for at, event in enumerate(events)]
