"""vLLM's server API, as far as a trainer needs it.

Facts, read in vLLM's repository in November 2026 (below vllm/entrypoints: openai/completion/protocol.py at
002032ee2b18, rl/online/api_router.py at 39929f1813ac, serve/dev/rlhf/api_router.py at 0100a2129224, serve/rpc and
serve/cache/api_router.py at 09cb327f1183; docs/features/sleep_mode.md at 01181ddf28bd; the documentation's pages of
v0.14.0 and v0.32.0):

- `POST /pause?mode=abort|wait|keep` (abort is the default), `POST /resume`, `GET /is_paused`. An aborted completion has
  `finish_reason` "abort".
- `POST /collective_rpc` with `{"method": "reload_weights", "kwargs": {"weights_path": FOLDER}}` answers `{"results":
  [null]}`, one for each worker. After a refusal (status 500) 0.32.0 was seen to have no weights, and to end with the
  next completion, unless it loaded others before; our engine keeps its own. Only `POST /reset_prefix_cache` clears the
  prefix cache after a reload; it answers `{"success": false}`, with status 200, while blocks are in use.
- `POST /update_weight_version` with `new_version`, `GET /weight_info`: a label of the weights, "default" at first. No
  completion carries it.
- `POST /v1/load_lora_adapter` with `lora_name` and `lora_path`, a folder in peft's format, `POST
  /v1/unload_lora_adapter` with `lora_name`: only with `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1` and `--enable-lora`; of at
  most `--max-lora-rank`, else status 500. `GET /v1/models` lists adapters with `parent`, and a completion names them as
  `model`, else status 404 (0.32.0: entrypoints/serve/lora, entrypoints/openai/models/serving.py, lora/peft_helper.py).
  What prefixes cached is kept by name and folder of the adapters.
- Weights by NCCL: see `sleuth.engines.remote.weight_transfer`.
- `POST /sleep?level=1|2`: level 1 keeps the weights in the host's memory, level 2 loses them. `POST /wake_up`, with
  `tags=weights` or `tags=kv_cache` for a part; `GET /is_sleeping`.
- All of these need `VLLM_SERVER_DEV_MODE=1`, and sleeping `--enable-sleep-mode`; without, they are 404.
- Log-probabilities are those before temperature (`--logprobs-mode raw_logprobs`, the default) or after
  (`processed_logprobs`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from emulator.bodies import field, prompt_of, read_body, sampling_of, text_of
from emulator.engine import KV_CACHE, WEIGHTS, EngineEmulator
from emulator.weight_transfer import NOT_CONFIGURED, ReceivedBroadcast
from sleuth.render import decode
from sleuth.serve.engine_thread import cancel_on_disconnect
from sleuth.serve.refused import Refused
from sleuth.types import SleuthError

VERSION = "0.32.0"
"""The emulated version."""

COMPLETION = (
    "model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "frequency_penalty", "presence_penalty", "stop", "stop_token_ids", "include_stop_str_in_output",
    "skip_special_tokens", "spaces_between_special_tokens", "logprobs", "return_token_ids", "seed",
)  # fmt: skip


class VllmEmulator(EngineEmulator):
    """The endpoints that training needs."""

    owner = "vllm"
    raw_by_default = True
    _updating = False
    _received = ReceivedBroadcast()

    def routes(self) -> list[Route]:
        """See `EngineEmulator`."""
        return [
            Route("/health", self.health),
            Route("/version", self._version),
            Route("/v1/completions", self._complete, methods=["POST"]),
            Route("/pause", self._pause, methods=["POST"]),
            Route("/resume", self._resume, methods=["POST"]),
            Route("/is_paused", self._is_paused),
            Route("/collective_rpc", self._reload, methods=["POST"]),
            Route("/init_weight_transfer_engine", self._init_transfer, methods=["POST"]),
            Route("/start_weight_update", self._start_update, methods=["POST"]),
            Route("/update_weights", self._update_weights, methods=["POST"]),
            Route("/finish_weight_update", self._finish_update, methods=["POST"]),
            Route("/shutdown_weight_transfer_engine", self._shut_down_transfer, methods=["POST"]),
            Route("/get_world_size", self._world_size),
            Route("/reset_prefix_cache", self._reset, methods=["POST"]),
            Route("/update_weight_version", self._rename, methods=["POST"]),
            Route("/weight_info", self._weight_info),
            Route("/v1/load_lora_adapter", self.load_adapters, methods=["POST"]),
            Route("/v1/unload_lora_adapter", self.unload_adapters, methods=["POST"]),
            Route("/sleep", self._sleep, methods=["POST"]),
            Route("/wake_up", self._wake_up, methods=["POST"]),
            Route("/is_sleeping", self._is_sleeping),
        ]

    async def _version(self, request: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def _complete(self, request: Request) -> Response:
        body = await read_body(request, COMPLETION)
        name = body.get("model", self.name)
        if name != self.name and name not in self.engine.adapters:
            raise Refused(404, f"The model `{name}` does not exist.", param="model")
        await self.engine.answer_with(None if name == self.name else name)
        number = next(self.numbers)
        prompt = prompt_of(body, "prompt", self.engine)
        sampling = sampling_of(body, self.engine, tokens="max_tokens", seed="seed", at=number)

        async def respond() -> Response:
            number = await self.fault_injector.before()
            completion, _ = await self.engine.write(prompt, sampling)
            logprobs = await self.logprobs(prompt, completion, sampling)
            tokens, reason = completion.tokens, "stop" if completion.stop == "eos" else completion.stop
            text = text_of(self.engine, completion.text, completion.stop)
            words = [decode(self.engine.tokenizer, [token]) for token in tokens]
            choice = {
                "index": 0,
                "text": text,
                "finish_reason": reason,
                "stop_reason": None,
                "token_ids": tokens if body.get("return_token_ids") else None,
                "logprobs": {"tokens": words, "token_logprobs": logprobs} if body.get("logprobs") else None,
            }
            answer_body = {"id": "cmpl-1", "object": "text_completion", "model": self.name, "choices": [choice]}
            return self.fault_injector.after(number, JSONResponse(answer_body))

        return await cancel_on_disconnect(request, respond())

    async def adapters_changed(self, change: Awaitable[None]) -> Response:
        """See `EngineEmulator`."""
        try:
            await change
        except SleuthError as error:
            raise Refused(500, f"Call to add_lora method failed: {error}") from None
        return Response("Success: LoRA adapter changed.")

    # -- training ----------------------------------------------------------------------------------------------------

    async def _pause(self, request: Request) -> Response:
        mode = request.query_params.get("mode", "abort")
        if mode not in ("abort", "wait"):
            raise Refused(400, f"mode = {mode}: our engine cannot freeze requests; expected abort or wait")
        await self.engine.pause(wait=mode == "wait")
        return JSONResponse({"status": "paused"})

    async def _resume(self, request: Request) -> Response:
        self.engine.resume()
        return JSONResponse({"status": "resumed"})

    async def _is_paused(self, request: Request) -> Response:
        return JSONResponse({"is_paused": self.engine.paused})

    async def _reload(self, request: Request) -> Response:
        body = await read_body(request, ("method", "args", "kwargs", "timeout"))
        kwargs = field(body, "kwargs", dict, {})
        if body.get("method") != "reload_weights" or list(kwargs) != ["weights_path"] or body.get("args"):
            raise Refused(400, "our engine supports only reload_weights with kwargs.weights_path", param="method")
        path = field(kwargs, "weights_path", str, "")
        own = path == self.name
        await self._or_refuse(self.engine.load_own() if own else self.engine.load(Path(path), None))
        return JSONResponse({"results": [None]})

    async def _world_size(self, request: Request) -> Response:
        return JSONResponse({"world_size": 1})

    async def _init_transfer(self, request: Request) -> Response:
        self._require_transfer()
        info = field(await read_body(request, ("init_info",)), "init_info", dict, {})
        self._received = ReceivedBroadcast()
        await self._or_refuse(self._received.join(info))
        return JSONResponse({"message": "Weight transfer initialized"})

    async def _start_update(self, request: Request) -> Response:
        self._require_transfer()
        self._updating = True
        return JSONResponse({"message": "Weight update started"})

    async def _update_weights(self, request: Request) -> Response:
        self._require_transfer()
        info = field(await read_body(request, ("update_info",)), "update_info", dict, {})
        if not self._updating:
            raise Refused(500, "start_weight_update must be called before update_weights")
        await self._or_refuse(self._load(info))
        return JSONResponse({"message": "Weights updated"})

    async def _load(self, info: dict[str, Any]) -> None:
        await self.engine.load_tensors(await self._received.receive(info), "update_info")

    async def _or_refuse(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except SleuthError as error:
            raise Refused(500, str(error)) from None

    async def _finish_update(self, request: Request) -> Response:
        self._require_transfer()
        self._updating = False
        return JSONResponse({"message": "Weight update finished"})

    async def _shut_down_transfer(self, request: Request) -> Response:
        self._require_transfer()
        if self._updating:
            raise Refused(500, "Cannot release a trainer connection during a weight update")
        self._received = ReceivedBroadcast()
        return JSONResponse({"message": "Weight transfer shut down"})

    def _require_transfer(self) -> None:
        if not self.broadcast:
            raise Refused(500, NOT_CONFIGURED)

    async def _reset(self, request: Request) -> Response:
        return JSONResponse({"success": await self.engine.flush()})

    async def _rename(self, request: Request) -> Response:
        body = await read_body(request, ("new_version",))
        self.engine.label = field(body, "new_version", str, self.engine.label)
        return JSONResponse({"success": True, "new_version": self.engine.label})

    async def _weight_info(self, request: Request) -> Response:
        return JSONResponse({"weight_version": self.engine.label})

    async def _sleep(self, request: Request) -> Response:
        level = request.query_params.get("level", "1")
        if level not in ("1", "2"):
            raise Refused(400, f"level = {level}: expected 1 or 2")
        await self.engine.sleep(WEIGHTS, KV_CACHE, keeps_weights=level == "1")
        return Response()

    async def _wake_up(self, request: Request) -> Response:
        self.engine.wake(*(request.query_params.getlist("tags") or (WEIGHTS, KV_CACHE)))
        return Response()

    async def _is_sleeping(self, request: Request) -> Response:
        return JSONResponse({"is_sleeping": bool(self.engine.asleep)})
