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
from starlette.responses import JSONResponse
from starlette.routing import Route
from transformers import PreTrainedTokenizerFast

from sleuth.dialect import dialect_of
from sleuth.episodes.agent_answers import chat_answer, response_answer
from sleuth.episodes.agent_messages import (
    MODEL,
    Asked,
    BadRequestError,
    History,
    Said,
    Turn,
    Usage,
    chat_request,
    response_request,
)
from sleuth.episodes.chat_template import KEPT, ChatTemplate
from sleuth.episodes.function import env_code_in, failed
from sleuth.episodes.protocol import AGENT, ProtocolCard
from sleuth.episodes.setting import Setting
from sleuth.host.escapes import replace_surrogates
from sleuth.own.calls import Caller, delaying_engine, finite_number, shown_value
from sleuth.own.commands import load_command
from sleuth.own.functions import UserCodeError, load_function, require_arguments
from sleuth.rollout import EPISODES_AT_ONCE
from sleuth.types import Action, Env, EpisodeKey, Reply, Score, SleuthError, StopReason, Task

if TYPE_CHECKING:
    from sleuth.episodes.tables import AgentEnvRecipe

MAX_BODY = 16 * 2**20
"""Bytes of a request."""
ENDED = "the episode has ended"
SHARED = (
    "had several requests at once while another agent had none: if agents share a client, all ask with the key of the "
    "first; make the client in each call, with its api_key"
)
TOGETHER = "; the policy writes when all agents have asked, so none may wait for another or block its event loop"


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
        self._key = ""
        self._agent: asyncio.Future[Any] | None = None
        self._used = Usage()
        self._received: list[Pending] = []
        self._several = False  # requests at once
        self._may_be_shared = False  # its key
        self._ended = False
        self._lock = Lock()  # of these, which the thread of the endpoint reads too

    async def open(self) -> Reply:
        self._loop = asyncio.get_running_loop()
        self._requests = asyncio.Queue[Pending]()
        endpoint = endpoint_of_process()
        self._key = endpoint.add(self)
        call = self.setting.make(self.task, endpoint.url, self._key, **self.setting.parameters)
        self._agent = asyncio.ensure_future(call)
        return await self._next()

    def count_tokens(self, prompt: int, completion: int) -> None:
        """The tokens that the policy read for the turn that is replied to next, and those that it wrote."""
        self._used = Usage(prompt=prompt, completion=completion)

    async def reply(self, text: str, stop: StopReason) -> Reply:
        assert self.pending is not None  # a turn answers a request
        self.last = replace(self.history.written(text, stop), usage=self._used)
        self.pending.answer.set_result(self.last)
        return await self._next()

    async def score(self) -> Score | None:
        """The number that the agent returned, 0 where the context was full before it did; None of an answer."""
        return self._score

    async def close(self) -> None:
        """Ends the agent, whose requests get no answer any more."""
        if self._agent is None:  # it did not open
            return
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
            self._several |= any(not one.answer.done() for one in self._received)
            self._received.append(pending)
            self._loop.call_soon_threadsafe(self._requests.put_nowait, pending)

    async def _next(self) -> Reply:
        """The reply that the agent's next request is, or the end of the episode."""
        assert self._agent is not None
        while True:
            with delaying_engine():  # else it would go on with other batches in each run
                request = asyncio.ensure_future(self._requests.get())
                await asyncio.wait(
                    {request, self._agent}, timeout=self.setting.seconds, return_when=asyncio.FIRST_COMPLETED
                )
            if self._agent.done():
                request.cancel()
                await self._others_ask()
                return self._end(self._agent)
            if not request.done():
                request.cancel()
                self._suspect_others()
                late = f"neither asked nor returned within {self.setting.seconds:g} seconds"
                return failed(self.setting.make.function.error(f"{late}{TOGETHER}"))
            self.pending = request.result()
            self.calls += 1
            if self.calls > self.setting.calls:
                return failed(self.setting.make.function.error(f"asked more than calls = {self.setting.calls} times"))
            try:
                framed = self.history.framed(self.pending.asked)
                break
            except (SleuthError, ValueError, RecursionError) as error:  # such as a template without tools
                self.pending.answer.set_exception(BadRequestError(str(error)))
        limit = self.setting.dialect.turn_tokens
        return Reply(
            pieces=framed.pieces,
            restarts=framed.restarts,
            action=self._action(self.pending.asked),
            max_tokens=min(limit, self.pending.asked.max_tokens or limit),
            stops=self.pending.asked.stops,
        )

    async def _others_ask(self) -> None:
        """Where requests came at once, waits until each other agent has asked too: those of one that never does may be
        among them."""
        until = time.monotonic() + self.setting.seconds
        while self._several and time.monotonic() < until:
            if all(env._received for env in endpoint_of_process().others(self)):
                return
            await asyncio.sleep(0.05)

    def _suspect_others(self) -> None:
        """Of an agent that never asked, unless it raised: its requests may have come with the key of another."""
        for env in endpoint_of_process().others(self) if not self.calls else ():
            env._may_be_shared |= env._several

    def _action(self, asked: Asked) -> Action | None:
        """The calls of the last turn, with their results as far as the request has them."""
        if self.last is None or not self.last.calls:
            return None
        results = {one.answers: one.text for one in asked.said if one.answers}
        calls = [{"name": call.name, "arguments": call.arguments} for call in self.last.calls]
        found = [results[call.id] for call in self.last.calls if call.id in results]
        text = json.dumps(calls[0] if len(calls) == 1 else calls, ensure_ascii=False)
        return Action(kind="call", text=text, result="\n".join(found) if found else None)

    def _end(self, agent: asyncio.Future[Any]) -> Reply:
        function = self.setting.make.function
        try:
            returned = agent.result()
            if self.last is None:
                self._suspect_others()
                raise function.error("returned without asking the model")
            if self._may_be_shared:
                raise function.error(SHARED)
            if isinstance(returned, str):
                self._score = None
                return Reply(action=Action(kind="answer", text=replace_surrogates(returned.strip())), done="answered")
            if (value := finite_number(returned)) is not None:
                self._score = Score(value=value)
                return Reply(action=Action(kind="answer", text=self.last.text), done="answered")
            raise function.error(f"returned {shown_value(returned)}; expected an answer (text) or a score (a number)")
        except UserCodeError as error:
            return failed(error)


class RequestEnv:
    """The environment of one request for a turn, which has the whole history. `turn` is the policy's, when it ended.

    The constructor raises SleuthError or ValueError for a history that the chat template does not render."""

    def __init__(self, asked: Asked, setting: ChatSetting) -> None:
        self.history = History(dialect=setting.dialect, template=setting.template_with)
        pieces, limit = self.history.framed(asked).pieces, asked.max_tokens or setting.dialect.turn_tokens
        self._opening = Reply(pieces=pieces, max_tokens=limit, stops=asked.stops)
        self.turn: Turn | None = None
        self._used = Usage()

    async def open(self) -> Reply:
        return self._opening

    def count_tokens(self, prompt: int, completion: int) -> None:
        self._used = Usage(prompt=prompt, completion=completion)

    async def reply(self, text: str, stop: StopReason) -> Reply:
        self.turn = replace(self.history.written(text, stop), usage=self._used)
        return Reply(action=Action(kind="answer", text=self.turn.text), done="answered")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSetting(Setting):
    """What requests for turns share. The dialect has the tags of thoughts and calls that the model writes."""

    tokenizer: PreTrainedTokenizerFast | None
    templates: dict[str, ChatTemplate] = field(default_factory=dict, compare=False)

    longest_answer_key: ClassVar[str] = "env.turn_tokens"

    def env(self, task: Task, key: EpisodeKey = (0, 0)) -> Env:
        return RequestEnv(Asked(said=(Said(role="user", text=task.question),)), self)

    @property
    def opening(self) -> str:
        """Unknown without an agent."""
        return ""

    def template_with(self, tools: tuple[Mapping[str, Any], ...]) -> ChatTemplate:
        """The chat template with these tools. Raises SleuthError if it cannot show them."""
        assert self.tokenizer is not None  # only a check has none, and plays nothing
        assert self.template is not None
        name = json.dumps(tools, sort_keys=True)
        if name not in self.templates:
            if len(self.templates) >= KEPT:
                self.templates.clear()
            self.templates[name] = ChatTemplate(self.tokenizer, flags=self.template.flags, tools=tools)
        return self.templates[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSetting(ChatSetting):
    """What the episodes of an agent share."""

    parameters: Mapping[str, Any]
    make: Caller
    seconds: float
    calls: int

    def env(self, task: Task, key: EpisodeKey = (0, 0)) -> Env:
        return AgentEnv(task, self)


def chat_setting(card: ProtocolCard, tokenizer: PreTrainedTokenizerFast) -> ChatSetting:
    """A model that an agent trained, without the agent: it answers requests as it answered those of the agent."""
    return ChatSetting(
        dialect=card.dialect,
        prompt_name=AGENT,
        template=ChatTemplate(tokenizer, flags=card.template_flags),
        own_code=card.env,
        tokenizer=tokenizer,
    )


def agent_setting(env: AgentEnvRecipe, tokenizer: PreTrainedTokenizerFast | None) -> AgentSetting:
    """The user's agent. Raises UserCodeError if there is none, or if it cannot be called with a task, a URL and a
    key."""
    if env.function is None:
        function = load_command(env.command or "", env.files)
    else:
        function = load_function(env.function, env.files)
        require_arguments(function, 3, env.parameters, f"{function.short_name}(task, base_url, api_key)")
    return AgentSetting(
        dialect=replace(dialect_of(env.dialect), turn_tokens=env.turn_tokens),
        prompt_name=AGENT,
        template=None if tokenizer is None else ChatTemplate(tokenizer, flags=env.template_flags),
        own_code=env_code_in(env),
        parameters=env.parameters,
        make=Caller(function, seconds=math.inf, at_once=EPISODES_AT_ONCE),
        tokenizer=tokenizer,
        seconds=env.seconds,
        calls=env.calls,
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

    def others(self, env: AgentEnv) -> list[AgentEnv]:
        """The other episodes under way."""
        return [other for other in self._episodes.values() if other is not env]

    def remove(self, key: str) -> None:
        """Requests with this key are refused from now on."""
        self._episodes.pop(key, None)

    async def _models(self, request: Any) -> Any:
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _chat(self, request: Any) -> Any:
        return await self._answered(request, chat_request, chat_answer)

    async def _respond(self, request: Any) -> Any:
        return await self._answered(request, response_request, response_answer)

    async def _answered(self, request: Any, read: Any, answer: Any) -> Any:
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
        return answer(turn, body, MODEL)


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
