"""SGLang's server API, as far as a trainer needs it.

Facts, read in SGLang's repository in November 2026 (python/sglang/srt/entrypoints/http_server.py at 0025436eab05,
docs/advanced_features/sglang_for_rl.md at 067bfe93626b; besides what `sleuth.engines.remote.sglang` names):

- `meta_info.weight_version` is in every answer of `/generate`: a label of the weights, "default" at first. It is also
  in `/model_info`.
- `POST /update_weights_from_disk` takes `model_path`, `weight_version`, `abort_all_requests` and `flush_cache` (true by
  default), and answers `success`, `message` and `num_paused_requests`; status 400 where it failed. It waits for
  requests under way. From then on the server calls the model by that path.
- `POST /load_lora_adapter` with `lora_name` and `lora_path`, `POST /unload_lora_adapter` with `lora_name`: status 400
  with `error_message` without `--enable-lora`, for a rank above `--max-lora-rank` and a name that is loaded already.
  `GET /v1/models` lists adapters with `parent`, and a request names them as `lora_path`. `POST /update_weight_version`
  with `new_version` aborts all requests unless `abort_all_requests` is false (0.5.23: entrypoints/http_server.py,
  managers/tokenizer_control_mixin.py, lora/lora_manager.py).
- `POST /pause_generation` (`mode` abort, retract or in_place; abort is the default), `POST /continue_generation`.
  `finish_reason.type` is then "abort".
- `GET` or `POST /flush_cache` is 400 while requests are under way.
- `POST /release_memory_occupation` and `/resume_memory_occupation` take `tags`: weights, kv_cache; all without any.
  The server must be idle for the first, and be started with `--enable-memory-saver`. Released weights are lost.
- Log-probabilities are those after temperature, unless `SGLANG_RETURN_ORIGINAL_LOGPROB` is set.
- Of a context of n tokens a prompt may take n - 7, and prompt and completion n - 2: a prompt of n - 6 is refused, and
  so is a request for more than n in all; one for n or n - 1 ends early, by "length". `max_req_input_len` in
  `/server_info` is n - 6 (seen with SGLang 0.5.23 on a CPU; managers/tp_worker.py of it).
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from emulator.bodies import field, list_of, prompt_of, read_body, require_known, sampling_of, text_of
from emulator.engine import KV_CACHE, WEIGHTS, EngineEmulator
from sleuth.engines.launch import SGLANG_RESERVED
from sleuth.serve.engine_thread import cancel_on_disconnect
from sleuth.serve.refused import TOO_LONG, Refused
from sleuth.types import SleuthError

VERSION = "0.5.23"
"""The emulated version."""

GENERATE = ("input_ids", "sampling_params", "return_logprob", "lora_path")
SAMPLING_PARAMS = (
    "max_new_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty",
    "presence_penalty", "stop", "stop_token_ids", "no_stop_trim", "skip_special_tokens",
    "spaces_between_special_tokens", "sampling_seed",
)  # fmt: skip
UPDATE = ("model_path", "weight_version", "flush_cache")


class SglangEmulator(EngineEmulator):
    """The endpoints that training needs."""

    owner = "sglang"
    raw_by_default = False

    def routes(self) -> list[Route]:
        """See `EngineEmulator`."""
        get, post = ["GET"], ["POST"]
        return [
            Route("/health", self.health, methods=get),
            Route("/model_info", self._model_info, methods=get),
            Route("/server_info", self._server_info, methods=get),
            Route("/generate", self._generate, methods=post),
            Route("/update_weights_from_disk", self._update, methods=post),
            Route("/load_lora_adapter", self.load_adapters, methods=post),
            Route("/unload_lora_adapter", self.unload_adapters, methods=post),
            Route("/update_weight_version", self._rename, methods=post),
            Route("/pause_generation", self._pause, methods=post),
            Route("/continue_generation", self._continue, methods=post),
            Route("/flush_cache", self._flush, methods=[*get, *post]),
            Route("/release_memory_occupation", self._release, methods=post),
            Route("/resume_memory_occupation", self._resume, methods=post),
        ]

    async def _model_info(self, request: Request) -> Response:
        info = {"model_path": self.name, "tokenizer_path": self.name, "is_generation": True}
        return JSONResponse(info | {"weight_version": self.engine.label})

    async def _server_info(self, request: Request) -> Response:
        info = {"version": VERSION, "device": "cpu", "tp_size": 1, "pp_size": 1, "dp_size": 1}
        longest = self.engine.context - SGLANG_RESERVED
        return JSONResponse(info | {"context_length": self.engine.context, "max_req_input_len": longest})

    async def _generate(self, request: Request) -> Response:
        body = await read_body(request, GENERATE)
        params = field(body, "sampling_params", dict, {})
        require_known(params, SAMPLING_PARAMS)
        adapter = field(body, "lora_path", str, None)
        if adapter is not None and adapter not in self.engine.adapters:
            raise Refused(400, f"Got LoRA adapter that has never been loaded: {adapter}", param="lora_path")
        await self.engine.answer_with(adapter)
        prompt = prompt_of(body, "input_ids", self.engine)
        if len(prompt) >= (first := self.engine.context - SGLANG_RESERVED):
            line = f"Input length ({len(prompt)} tokens) exceeds the maximum allowed length ({first} tokens)"
            raise Refused(400, line, param="input_ids", code=TOO_LONG)
        at = next(self.numbers)
        sampling = sampling_of(params, self.engine, tokens="max_new_tokens", seed="sampling_seed", at=at)
        if len(prompt) + sampling.max_tokens > self.engine.context:
            line = f"Requested token count exceeds the model's maximum context length of {self.engine.context} tokens"
            raise Refused(400, line, param="max_new_tokens", code=TOO_LONG)
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens, self.engine.context - 2 - len(prompt)))

        async def respond() -> Response:
            number = await self.fault_injector.before()
            completion, label = await self.engine.write(prompt, sampling)
            logprobs = await self.logprobs(prompt, completion, sampling)
            meta = {
                "finish_reason": _reason(completion.stop, len(completion.tokens)),
                "prompt_tokens": len(prompt),
                "completion_tokens": len(completion.tokens),
                "weight_version": label,
            }
            if field(body, "return_logprob", bool, False):
                pairs = zip(logprobs, completion.tokens, strict=True)
                meta["output_token_logprobs"] = [[logprob, token, None] for logprob, token in pairs]
            text = text_of(self.engine, completion.text, completion.stop)
            answer_body = {"text": text, "output_ids": completion.tokens, "meta_info": meta}
            return self.fault_injector.after(number, JSONResponse(answer_body))

        return await cancel_on_disconnect(request, respond())

    async def adapters_changed(self, change: Awaitable[None]) -> Response:
        """See `EngineEmulator`."""
        try:
            await change
        except SleuthError as error:
            return JSONResponse({"success": False, "error_message": str(error)}, 400)
        return JSONResponse({"success": True, "error_message": None})

    # -- training ----------------------------------------------------------------------------------------------------

    async def _update(self, request: Request) -> Response:
        body = await read_body(request, UPDATE)
        folder = field(body, "model_path", str, "")
        try:
            await self.engine.load(Path(folder), field(body, "weight_version", str, None))
        except SleuthError as error:
            return JSONResponse({"success": False, "message": str(error), "num_paused_requests": 0}, 400)
        self.name = folder
        return JSONResponse({"success": True, "message": "Succeeded to update.", "num_paused_requests": 0})

    async def _rename(self, request: Request) -> Response:
        body = await read_body(request, ("new_version", "abort_all_requests"))
        if body.get("abort_all_requests", True):
            raise Refused(400, "abort_all_requests: our engine supports only false")
        self.engine.label = field(body, "new_version", str, self.engine.label)
        return JSONResponse({"success": True, "new_version": self.engine.label})

    async def _pause(self, request: Request) -> Response:
        body = await read_body(request, ("mode",))
        if body.get("mode", "abort") != "abort":
            raise Refused(400, f"mode = {body['mode']}: our engine cannot freeze requests; expected abort")
        await self.engine.pause()
        return JSONResponse({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, request: Request) -> Response:
        self.engine.resume()
        return JSONResponse({"message": "Generation continued successfully.", "status": "ok"})

    async def _flush(self, request: Request) -> Response:
        done = await self.engine.flush()
        return Response("Cache flushed.\n" if done else "Requests are running.\n", 200 if done else 400)

    async def _release(self, request: Request) -> Response:
        parts = _parts(await read_body(request, ("tags",)))
        if self.engine.running:
            raise Refused(400, "requests are running: only an idle server can release its memory")
        await self.engine.sleep(*parts)
        return Response()

    async def _resume(self, request: Request) -> Response:
        self.engine.wake(*_parts(await read_body(request, ("tags",))))
        return Response()


def _parts(body: dict[str, Any]) -> tuple[str, ...]:
    parts = tuple(list_of(body, "tags", str) or (WEIGHTS, KV_CACHE))
    if not set(parts) <= {WEIGHTS, KV_CACHE}:
        raise Refused(400, f"tags = {list(parts)}: expected weights or kv_cache", param="tags")
    return parts


def _reason(stop: str, length: int) -> dict[str, Any]:
    """SGLang's finish reason, without the matched stop, which clients derive from the ids."""
    if stop == "abort":
        return {"type": "abort", "message": "aborted"}
    return {"type": "length", "length": length} if stop == "length" else {"type": "stop", "matched": None}
