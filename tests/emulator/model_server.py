"""A tiny model behind the wire formats of SGLang and vLLM, over real HTTP on loopback; and what servers of other
versions, or in trouble, do otherwise."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.middleware.base import RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from emulator.served import emulated_server
from sleuth.render import find_eos_ids

WHOLE_SUPPORT = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
Kind = Literal["SGLang", "vLLM"]


@dataclass
class ModelServer:
    """What it serves and how it behaves; `bodies` are the completions it was asked for."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    name: str
    context: int = 512
    slots: int = 8
    lacks: Sequence[str] = ()  # paths that are not there
    returns_ids: bool = True
    overshoots: Sequence[int] = ()  # token ids that are left behind a stop
    disturbs: Callable[[int], Response | None] = lambda number: None  # instead of an answer, by its number from 1
    weights: Callable[[int], str] = lambda number: "default"
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    def __post_init__(self) -> None:
        self.eos_ids = find_eos_ids(self.model.generation_config, self.tokenizer)

    @property
    def asked(self) -> int:
        return len(self.bodies)

    @contextmanager
    def listening(self, kind: Kind) -> Iterator[ModelServer]:
        """At work in a thread, at its `url`."""
        how = {"name": self.name, "context": self.context, "slots": self.slots, "around": self._answer}
        with emulated_server(kind.lower(), self.model, self.tokenizer, **how) as server:
            self.url = server.url
            yield self

    async def _answer(self, request: Request, answer: RequestResponseEndpoint) -> Response:
        path = request.url.path
        if path in self.lacks:
            return JSONResponse({"detail": "Not Found"}, 404)
        if path in ("/generate", "/v1/completions"):
            return await self._complete(request, answer)
        return await answer(request)

    async def _complete(self, request: Request, answer: RequestResponseEndpoint) -> Response:
        body = await request.json()
        params = body.get("sampling_params", body)
        assert params["stop_token_ids"] == sorted(self.eos_ids)
        assert params | WHOLE_SUPPORT == params
        self.bodies.append(body)
        number = self.asked
        if (instead := self.disturbs(number)) is not None:
            return instead
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            told = await answer(request)
        finally:
            self.at_once -= 1
        whole = json.loads(await _content(told))
        if told.status_code == 200:
            self._alter_sglang(whole, number) if "meta_info" in whole else self._alter_vllm(whole["choices"][0])
        return JSONResponse(whole, told.status_code)

    def _alter_sglang(self, answer: dict[str, Any], number: int) -> None:
        told = answer["meta_info"]
        told["weight_version"] = self.weights(number)
        if self._stopped(told["finish_reason"]["type"], answer["output_ids"]):
            told["output_token_logprobs"] += [[-1.0, token, None] for token in self.overshoots]

    def _alter_vllm(self, choice: dict[str, Any]) -> None:
        tokens, told = choice["token_ids"], choice["logprobs"]
        if self._stopped(choice["finish_reason"], tokens):
            tokens += self.overshoots
            told["token_logprobs"] += [-1.0 for _ in self.overshoots]
        if not self.returns_ids:
            choice["token_ids"] = None

    def _stopped(self, finish_reason: str, tokens: Sequence[int]) -> bool:
        """By a stop string, and not by an end token."""
        return finish_reason == "stop" and tokens[-1] not in self.eos_ids


async def _content(answer: Any) -> bytes:
    return b"".join([part async for part in answer.body_iterator])


def free_url() -> str:
    """A URL where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"
