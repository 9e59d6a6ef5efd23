"""SGLang's HTTP API: turns by token ids, weights, and sleep.

Facts, read in SGLang in November 2026 (docs/basic_usage/sampling_params.md and, below python/sglang/srt,
sampling/sampling_params.py, entrypoints/http_server.py, managers/detokenizer_manager.py), seen with 0.5.23 on a CPU:

- `POST /generate` with `return_logprob`: `meta_info.output_token_logprobs` has [log-probability, token id, text
  or null], one for each sampled token; `meta_info.finish_reason` is an object whose `type` is stop, length or abort. An
  aborted request returns, with status 200, what it had sampled.
- Log-probabilities are those after temperature, unless `SGLANG_RETURN_ORIGINAL_LOGPROB` is set; at temperature 0, where
  it takes the likeliest token, those at temperature 1.
- `sampling_seed` is meant for `--enable-deterministic-inference`; elsewhere a draw cannot be repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sleuth.engines.remote.completions import (
    ABORTED,
    Aborted,
    Body,
    RawCompletion,
    make_raw_completion,
    sampling_parameters,
)
from sleuth.engines.remote.http_client import (
    HttpClient,
    HttpClientError,
    RefusedError,
    ServerFailedError,
)
from sleuth.engines.remote.published import LOAD_SECONDS, NotLoadedError, Published, load_adapters
from sleuth.engines.remote.weight_transfer import Transfer
from sleuth.engines.sampling import request_seed
from sleuth.learn.master_weights import WeightSource
from sleuth.types import Sampling

FLUSH_SECONDS = 10  # how long it may wait for its scheduler to let go of the last request


@dataclass(frozen=True, slots=True)
class Sglang:
    """The API for the served model `model`. `scaled`: log-probabilities are those after temperature. To sleep, it needs
    `--enable-memory-saver`, and to load adapters `--enable-lora`. What each method does is said at `Vllm`."""

    model: str
    scaled: bool = True
    adapter: str = ""

    path = "/generate"
    details = "/server_info"
    labels_completions = True
    needed = ("/pause_generation", "/update_weights_from_disk", "/continue_generation")
    remedy = "a newer SGLang (0.5.23 has them)"

    def body(self, prompt: Sequence[int], sampling: Sampling, *, limit: int, eos_ids: Collection[int]) -> Body:
        """A request to continue `prompt`."""
        params = {"max_new_tokens": limit, **sampling_parameters(sampling, eos_ids), "no_stop_trim": True}
        if sampling.temperature:
            params["sampling_seed"] = request_seed(sampling.key)
        adapter = {"lora_path": self.adapter} if self.adapter else {}
        return {"input_ids": list(prompt), "sampling_params": params, "return_logprob": True, **adapter}

    def read(self, answer: dict[str, Any], sampling: Sampling) -> RawCompletion:
        """The parsed answer."""
        info = answer["meta_info"]
        reason, weights = info["finish_reason"], info.get("weight_version")
        entries = info["output_token_logprobs"] if reason["type"] != ABORTED else info.get("output_token_logprobs")
        logprobs, tokens = ([entry[at] for entry in entries or ()] for at in (0, 1))
        raw = make_raw_completion(
            tokens,
            logprobs,
            sampling,
            scaled=self.scaled,
            finish_reason=reason["type"],
            weights=None if weights is None else str(weights),
        )
        if reason["type"] == ABORTED:
            raise Aborted(f"it gave up: {reason.get('message') or 'without a reason'}", raw)
        return raw

    async def weights(self, client: HttpClient) -> str:
        """The label of the weights."""
        return str((await client.get("/model_info"))["weight_version"])

    async def interrupt(self, client: HttpClient) -> None:
        """Aborts all turns."""
        await client.post("/pause_generation", {})

    async def load(self, client: HttpClient, published: Published) -> None:
        """Loads weights from their folder."""
        body = {"model_path": str(published.path), "weight_version": published.label, "flush_cache": False}
        await client.post("/pause_generation", {})
        try:
            await client.post("/update_weights_from_disk", body, seconds=LOAD_SECONDS)
        except (RefusedError, ServerFailedError) as error:
            with suppress(HttpClientError):
                await client.post("/continue_generation", {})  # with its old weights, to which it has gone back
            raise NotLoadedError(f"could not load {published.path}: {error}") from None
        await self._resume(client)

    async def receive(self, client: HttpClient, published: Published, source: WeightSource, by: Transfer) -> None:
        """Takes adapters."""
        try:
            await load_adapters(client, published)
            label = {"new_version": published.label, "abort_all_requests": False}
            await client.post("/update_weight_version", label)
        except (RefusedError, ServerFailedError) as error:
            raise NotLoadedError(f"takes no weights {by} ({error})") from None

    async def takes_broadcast(self, client: HttpClient) -> bool:
        """It does not."""
        return False

    async def sleep(self, client: HttpClient) -> None:
        """Releases the card's memory."""
        await client.post("/release_memory_occupation", {})

    async def reserve(self, client: HttpClient) -> None:
        """Allocates memory for the weights."""
        await client.post("/resume_memory_occupation", {"tags": ["weights"]})

    async def wake(self, client: HttpClient) -> None:
        """Allocates the rest of the memory."""
        await client.post("/resume_memory_occupation", {"tags": ["kv_cache"]})

    async def _resume(self, client: HttpClient) -> None:
        """Ends a load: drops what old weights cached, and continues."""
        try:
            await client.post("/flush_cache", params={"timeout": str(FLUSH_SECONDS)}, seconds=LOAD_SECONDS)
        except RefusedError as error:  # requests are under way; for an update of weights that is a failed load
            raise ServerFailedError(f"keeps what old weights cached: POST /flush_cache {error}") from None
        await client.post("/continue_generation", {})
