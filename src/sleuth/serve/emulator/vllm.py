"""What vLLM's server answers, as far as a trainer needs it.

Facts, read in vLLM's repository in November 2026 (below vllm/entrypoints: openai/completion/protocol.py at
002032ee2b18, rl/online/api_router.py at 39929f1813ac, serve/dev/rlhf/api_router.py at 0100a2129224, serve/rpc and
serve/cache/api_router.py at 09cb327f1183; docs/features/sleep_mode.md at 01181ddf28bd; the documentation's pages of
v0.14.0 and v0.32.0):

- `POST /pause?mode=abort|wait|keep` (abort is the default), `POST /resume`, `GET /is_paused`, `POST /abort_requests`
  with `request_ids`, without any of them all. An aborted completion has `finish_reason` "abort".
- `POST /collective_rpc` with `{"method": "reload_weights", "kwargs": {"weights_path": FOLDER}}` answers `{"results":
  [null]}`, one for each worker. `POST /reset_prefix_cache` forgets what was read; nothing else does after a reload.
- `POST /update_weight_version` with `new_version`, `GET /weight_info`: a name for the weights, "default" at first. No
  completion carries it.
- `POST /sleep?level=1|2`: level 1 keeps the weights in the host's memory, level 2 loses them. `POST /wake_up`, with
  `tags=weights` or `tags=kv_cache` for a part; `GET /is_sleeping`.
- All of these need `VLLM_SERVER_DEV_MODE=1`, and sleeping `--enable-sleep-mode`; without, they are 404.
- Log-probabilities are those before temperature (`--logprobs-mode raw_logprobs`, the default) or after
  (`processed_logprobs`).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sleuth.engines.remote.completions import TOKEN_ID
from sleuth.render import decode
from sleuth.serve.emulator.bodies import body_of, field, prompt_of, sampling_of, text_of
from sleuth.serve.emulator.engine import KV_CACHE, WEIGHTS, Aborted, EngineEmulator
from sleuth.serve.http.event_stream import unless_left
from sleuth.serve.http.refused import Refused
from sleuth.types import SleuthError

VERSION = "0.32.0"
"""The one whose words are spoken."""

COMPLETION = (
    "model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "frequency_penalty", "presence_penalty", "stop", "stop_token_ids", "include_stop_str_in_output",
    "skip_special_tokens", "spaces_between_special_tokens", "logprobs", "return_token_ids",
    "return_tokens_as_token_ids", "seed", "request_id",
)  # fmt: skip


class VllmEmulator(EngineEmulator):
    """The endpoints that training needs."""

    owner = "vllm"
    raw_by_default = True

    def routes(self) -> list[Route]:
        """See `EngineEmulator`."""
        return [
            Route("/health", self.health),
            Route("/version", self._version),
            Route("/v1/completions", self._complete, methods=["POST"]),
            Route("/pause", self._pause, methods=["POST"]),
            Route("/resume", self._resume, methods=["POST"]),
            Route("/is_paused", self._is_paused),
            Route("/abort_requests", self._abort, methods=["POST"]),
            Route("/collective_rpc", self._reload, methods=["POST"]),
            Route("/reset_prefix_cache", self._reset, methods=["POST"]),
            Route("/update_weight_version", self._rename, methods=["POST"]),
            Route("/weight_info", self._weight_info),
            Route("/sleep", self._sleep, methods=["POST"]),
            Route("/wake_up", self._wake_up, methods=["POST"]),
            Route("/is_sleeping", self._is_sleeping),
        ]

    async def _version(self, request: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def _complete(self, request: Request) -> Response:
        asked = await body_of(request, COMPLETION)
        if asked.get("model", self.name) != self.name:
            raise Refused(404, f"The model `{asked['model']}` does not exist.", param="model")
        number = next(self.numbers)
        prompt = prompt_of(asked, "prompt", self.engine)
        sampling = sampling_of(asked, self.engine, tokens="max_tokens", seed="seed", at=number)
        name = field(asked, "request_id", str, secrets.token_hex(8))

        async def answer() -> Response:
            counted = await self.trouble.before()
            try:
                written, _ = await self.engine.write(name, prompt, sampling)
            except Aborted:
                written = None
            logprobs = await self.logprobs(prompt, written, sampling) if written else ()
            kept = field(asked, "include_stop_str_in_output", bool, False)
            text = text_of(self.engine, written.text, written.stop, sampling.stops, kept=kept) if written else ""
            reason = "abort" if written is None else "length" if written.stop == "length" else "stop"
            tokens = written.tokens if written else ()
            by_id = field(asked, "return_tokens_as_token_ids", bool, False)
            choice = {
                "index": 0,
                "text": text,
                "finish_reason": reason,
                "stop_reason": None,
                "token_ids": tokens if field(asked, "return_token_ids", bool, False) else None,
                "logprobs": self._told(tokens, logprobs, by_id=by_id) if asked.get("logprobs") is not None else None,
            }
            whole = {"id": f"cmpl-{name}", "object": "text_completion", "model": self.name, "choices": [choice]}
            return self.trouble.after(counted, JSONResponse(whole))

        return await unless_left(request, answer())

    def _told(self, tokens: Sequence[int], logprobs: Sequence[float], *, by_id: bool) -> dict[str, object]:
        words = [f"{TOKEN_ID}{token}" if by_id else decode(self.engine.tokenizer, [token]) for token in tokens]
        return {"tokens": words, "token_logprobs": logprobs}

    # -- for who trains ----------------------------------------------------------------------------------------------

    async def _pause(self, request: Request) -> Response:
        mode = request.query_params.get("mode", "abort")
        if mode not in ("abort", "wait"):
            raise Refused(400, f"mode = {mode}: our engine cannot freeze what is under way; abort or wait")
        await self.engine.pause(wait=mode == "wait")
        return JSONResponse({"status": "paused"})

    async def _resume(self, request: Request) -> Response:
        self.engine.resume()
        return JSONResponse({"status": "resumed"})

    async def _is_paused(self, request: Request) -> Response:
        return JSONResponse({"is_paused": self.engine.paused})

    async def _abort(self, request: Request) -> Response:
        asked = await body_of(request, ("request_ids",))
        return JSONResponse({"status": "aborted", "aborted": self.engine.abort(asked.get("request_ids") or None)})

    async def _reload(self, request: Request) -> Response:
        asked = await body_of(request, ("method", "args", "kwargs", "timeout"))
        kwargs = field(asked, "kwargs", dict, {})
        if asked.get("method") != "reload_weights" or list(kwargs) != ["weights_path"] or asked.get("args"):
            raise Refused(400, "our engine knows reload_weights with kwargs.weights_path alone", param="method")
        try:
            await self.engine.load(Path(str(kwargs["weights_path"])), None)
        except SleuthError as error:
            raise Refused(500, str(error)) from None
        return JSONResponse({"results": [None]})

    async def _reset(self, request: Request) -> Response:
        await self.engine.flush()
        return Response()

    async def _rename(self, request: Request) -> Response:
        asked = await body_of(request, ("new_version",))
        self.engine.label = field(asked, "new_version", str, self.engine.label)
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
