"""llama.cpp's server, llama-cpp-python's and Ollama, by the shapes that they publish, over real HTTP on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from listening import listening
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from emulator.engine import EmulatedEngine
from sleuth.render import IncrementalDecoder, decode, encode
from sleuth.types import Completion, Sampling

OWNERS = {"llama.cpp": "llamacpp", "llama-cpp-python": "me", "Ollama": "library"}
PATHS = {"llama.cpp": "/completion", "llama-cpp-python": "/v1/completions", "Ollama": "/api/generate"}


@dataclass
class StreamedServer:
    """What it serves and how it behaves; `bodies` are the turns it was asked for."""

    kind: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    name: str
    breaks_after: int | None = None  # tokens
    stalls_after: str | None = None  # a text, from the second turn on
    was_left: bool = True  # before it went on
    adds_first: bool = False  # a token before every prompt
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)

    @contextmanager
    def listening(self) -> Iterator[StreamedServer]:
        """At work in a thread, at its `url`."""
        engine = EmulatedEngine(self.model, self.tokenizer, slots=4, context=1024, seconds=60)

        @asynccontextmanager
        async def runs(app: Starlette) -> AsyncIterator[None]:
            engine.engine_thread.start()
            yield
            await engine.engine_thread.stop()

        async def models(request: Request) -> Response:
            card = {"id": self.name, "object": "model", "owned_by": OWNERS[self.kind]}
            meta = {"meta": {"n_ctx": 512}} if self.kind == "llama.cpp" else {}
            return JSONResponse({"object": "list", "data": [card | meta]})

        async def complete(request: Request) -> Response:
            body = await request.json()
            self.bodies.append(body)
            prompt = body["prompt"]
            ids = prompt if self.kind == "llama.cpp" else encode(self.tokenizer, prompt)
            options = body.get("options", body)
            assert (options["top_k"], options["top_p"], options["min_p"], options["repeat_penalty"]) == (0, 1, 0, 1)
            limit = next(options[key] for key in ("n_predict", "max_tokens", "num_predict") if key in options)
            completion, _ = await engine.write(ids, Sampling(max_tokens=limit, temperature=options["temperature"]))
            return StreamingResponse(self._lines(completion, len(ids) + self.adds_first))

        routes = [Route("/v1/models", models), Route(PATHS[self.kind], complete, methods=["POST"])]
        if self.kind == "Ollama":
            routes.append(Route("/api/version", lambda request: JSONResponse({"version": "0.13.1"})))
        with listening(Starlette(routes=routes, lifespan=runs)) as self.url:
            yield self

    async def _lines(self, completion: Completion, read: int) -> AsyncIterator[str]:
        decoder = IncrementalDecoder(self.tokenizer)
        ended = completion.stop == "eos"
        for at, (token, logprob) in enumerate(zip(completion.tokens, completion.logprobs or (), strict=True), 1):
            if self.breaks_after is not None and at > self.breaks_after:
                return
            is_end = ended and at == len(completion.tokens)
            text = "" if is_end else decoder.push(token)
            if self.kind == "llama.cpp" or not is_end:
                yield self._line(token, logprob, text, at, read)
            if self.stalls_after is not None and self.stalls_after in text and len(self.bodies) > 1:
                await asyncio.sleep(1)
                self.was_left = False
        yield self._last(completion, read)

    def _line(self, token: int, logprob: float, text: str, at: int, read: int) -> str:
        if self.kind == "Ollama":
            logprobs = [{"token": decode(self.tokenizer, [token]), "logprob": logprob}]
            return json.dumps({"model": self.name, "response": text, "done": False, "logprobs": logprobs}) + "\n"
        if self.kind == "llama-cpp-python":
            choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": None}
            return f"data: {json.dumps({'object': 'text_completion', 'choices': [choice]})}\r\n\r\n"
        counts = {"tokens_predicted": at, "tokens_evaluated": read}
        probability = {"id": token, "token": text, "logprob": logprob, "top_logprobs": []}
        line = {
            "index": 0,
            "content": text,
            "tokens": [token],
            "stop": False,
            "completion_probabilities": [probability],
        }
        return f"data: {json.dumps(line | counts)}\n\n"

    def _last(self, completion: Completion, read: int) -> str:
        limited = completion.stop == "length"
        if self.kind == "Ollama":
            line = {"response": "", "done": True, "done_reason": "length" if limited else "stop"}
            return json.dumps(line | {"prompt_eval_count": read, "eval_count": len(completion.tokens)}) + "\n"
        if self.kind == "llama-cpp-python":
            choice = {"text": "", "index": 0, "logprobs": None, "finish_reason": completion.stop.replace("eos", "stop")}
            return f": ping\r\n\r\ndata: {json.dumps({'choices': [choice]})}\r\n\r\ndata: [DONE]\r\n\r\n"
        line = {"content": "", "stop": True, "stop_type": "limit" if limited else "eos", "tokens": []}
        counts = {"tokens_predicted": len(completion.tokens), "tokens_evaluated": read}
        return f"data: {json.dumps(line | counts)}\n\n"
