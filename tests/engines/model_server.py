"""A tiny model behind the wire formats of SGLang and vLLM, over real HTTP on loopback: `LocalEngine` writes.

Both refuse a field that the real server's documents do not name, so that a misspelt one fails here too.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.engines.local import LocalEngine
from sleuth.render import decode, encode
from sleuth.types import Completion, Sampling

GENERATE = {"input_ids", "sampling_params", "return_logprob"}
SAMPLING_PARAMS = {
    "max_new_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty",
    "presence_penalty", "stop", "stop_token_ids", "no_stop_trim", "skip_special_tokens",
    "spaces_between_special_tokens", "sampling_seed",
}  # fmt: skip
COMPLETIONS = {
    "model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "frequency_penalty", "presence_penalty", "stop", "stop_token_ids", "include_stop_str_in_output",
    "skip_special_tokens", "spaces_between_special_tokens", "logprobs", "return_token_ids",
    "return_tokens_as_token_ids", "seed",
}  # fmt: skip
WHOLE_SUPPORT = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


@dataclass
class ModelServer:
    """What it serves and how it behaves; `bodies` are the completions it was asked for."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    name: str
    context: int = 512
    slots: int = 8
    tells_ids: str = "token_ids"  # or "token_id:", as older versions of vLLM did, or nothing
    keeps_stops: bool = True
    overshoots: Sequence[int] = ()  # token ids that are left behind a stop
    vocabulary_told: bool = True
    disturbs: Callable[[int], Response | None] = lambda number: None  # instead of an answer, by its number from 1
    weights: Callable[[int], str] = lambda number: "default"
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    def __post_init__(self) -> None:
        self.engine = LocalEngine(self.model, self.tokenizer, slots=self.slots, context=self.context)

    @property
    def asked(self) -> int:
        return len(self.bodies)

    # -- SGLang ------------------------------------------------------------------------------------------------------

    def sglang(self) -> list[Route]:
        return [
            Route("/get_model_info", self._model_info),
            Route("/get_server_info", lambda request: JSONResponse({"version": "0.5.9", "internal_states": []})),
            Route("/v1/models", self._models_of("sglang")),
            Route("/tokenize", self._tokenize, methods=["POST"]),
            Route("/generate", self._generate, methods=["POST"]),
        ]

    async def _model_info(self, request: Request) -> Response:
        return JSONResponse({"model_path": self.name, "tokenizer_path": self.name, "is_generation": True})

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        params = body["sampling_params"]
        if unknown := (body.keys() - GENERATE) | (params.keys() - SAMPLING_PARAMS):
            return JSONResponse({"error": {"message": f"Unexpected keyword argument {sorted(unknown)}"}}, 400)
        assert params["stop_token_ids"] == sorted(self.engine._ends)
        assert params | WHOLE_SUPPORT == params
        self.bodies.append(body)
        if (instead := self.disturbs(self.asked)) is not None:
            return instead
        number = self.asked
        limits = Sampling(
            max_tokens=params["max_new_tokens"],
            temperature=params["temperature"],
            stops=tuple(params["stop"]),
            key=(params.get("sampling_seed", 0),),
        )
        written = await self._write(body["input_ids"], limits)
        reason = {"stop": {"type": "stop", "matched": "?"}, "eos": {"type": "stop", "matched": 0}}
        sampled = zip(written.logprobs or (), written.tokens, strict=True)
        return JSONResponse(
            {
                "text": self._text(written, limits, kept=params["no_stop_trim"]),
                "output_ids": written.tokens,
                "meta_info": {
                    "finish_reason": reason.get(written.stop, {"type": "length", "length": len(written.tokens)}),
                    "output_token_logprobs": [[logprob, token, None] for logprob, token in sampled],
                    "weight_version": self.weights(number),
                },
            }
        )

    # -- vLLM --------------------------------------------------------------------------------------------------------

    def vllm(self, owner: str = "vllm") -> list[Route]:
        return [
            Route("/version", lambda request: JSONResponse({"version": "0.33.0"})),
            Route("/v1/models", self._models_of(owner)),
            Route("/tokenize", self._tokenize, methods=["POST"]),
            Route("/v1/completions", self._complete, methods=["POST"]),
        ]

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        if unknown := body.keys() - COMPLETIONS:
            return JSONResponse({"error": {"message": f"Extra inputs are not permitted: {sorted(unknown)}"}}, 400)
        if body["model"] != self.name:
            return JSONResponse({"error": {"message": f"The model `{body['model']}` does not exist."}}, 404)
        assert body["stop_token_ids"] == sorted(self.engine._ends)
        assert body | WHOLE_SUPPORT == body
        self.bodies.append(body)
        if (instead := self.disturbs(self.asked)) is not None:
            return instead
        limits = Sampling(
            max_tokens=body["max_tokens"],
            temperature=body["temperature"],
            stops=tuple(body["stop"]),
            key=(body.get("seed", 0),),
        )
        written = await self._write(body["prompt"], limits)
        as_ids = self.tells_ids == "token_id:"
        choice = {
            "index": 0,
            "text": self._text(written, limits, kept=body["include_stop_str_in_output"] and self.keeps_stops),
            "finish_reason": "length" if written.stop == "length" else "stop",
            "stop_reason": None,
            "token_ids": written.tokens if self.tells_ids == "token_ids" else None,
            "logprobs": {
                "tokens": [
                    f"token_id:{token}" if as_ids else decode(self.tokenizer, [token]) for token in written.tokens
                ],
                "token_logprobs": written.logprobs,
            },
        }
        return JSONResponse({"object": "text_completion", "model": self.name, "choices": [choice]})

    # -- both --------------------------------------------------------------------------------------------------------

    def _models_of(self, owner: str) -> Callable[[Request], Response]:
        card = {"id": self.name, "root": self.name, "owned_by": owner, "max_model_len": self.context}
        return lambda request: JSONResponse({"object": "list", "data": [card]})

    async def _tokenize(self, request: Request) -> Response:
        if not self.vocabulary_told:
            return JSONResponse({"detail": "Not Found"}, 404)
        body = await request.json()
        assert body["add_special_tokens"] is False
        tokens = encode(self.tokenizer, body["prompt"])
        return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": self.context})

    async def _write(self, prompt: Sequence[int], limits: Sampling) -> Completion:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            written = await self.engine.complete(prompt, limits)
        finally:
            self.at_once -= 1
        if written.stop != "stop" or not self.overshoots:
            return written
        return Completion(
            tokens=(*written.tokens, *self.overshoots),
            logprobs=(*(written.logprobs or ()), *(-1.0 for _ in self.overshoots)),
            text=written.text,
            stop="stop",
        )

    def _text(self, written: Completion, limits: Sampling, *, kept: bool) -> str:
        """As the real ones: the text of all tokens, cut behind the stop string, or before it."""
        if kept and written.stop == "eos":
            return decode(self.tokenizer, written.tokens)
        if kept or written.stop != "stop":
            return written.text
        return min((written.text.removesuffix(stop) for stop in limits.stops), key=len)


@contextmanager
def listening(server: ModelServer, routes: Sequence[Route]) -> Iterator[ModelServer]:
    """The server at work in a thread, at its `url`."""
    with application(Starlette(routes=list(routes))) as server.url:
        yield server


@contextmanager
def application(app: ASGIApp) -> Iterator[str]:
    """Any application at work in a thread; its URL."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    process = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=process.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not process.started and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.started
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        process.should_exit = True
        thread.join(30)


def free_url() -> str:
    """A URL where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"
