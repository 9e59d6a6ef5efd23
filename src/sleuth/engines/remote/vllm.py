"""vLLM's HTTP API: turns by token ids, weights, and sleep.

Facts, read in vLLM 0.32.0 (below vllm/entrypoints: openai/completion, rl/online/api_router.py, serve):

- `return_token_ids` puts `token_ids` into the choice. Under speculative decoding they may go on after the stop string.
- `finish_reason` is stop, length or abort. `seed` makes a request repeatable. At most four stop strings are taken.
- Log-probabilities are those before temperature, unless `--logprobs-mode processed_logprobs`.
- If a prompt ends within a character (half of its UTF-8 bytes), its text comes before that of the completion, and stop
  strings are found there (seen). Texts of environments end with whole characters.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sleuth.engines.remote.completions import (
    ABORTED,
    MALFORMED,
    Aborted,
    Body,
    RawCompletion,
    make_raw_completion,
    sampling_parameters,
)
from sleuth.engines.remote.http_client import (
    HttpClient,
    HttpClientError,
    LostResponseError,
    RefusedError,
    ServerFailedError,
)
from sleuth.engines.remote.published import (
    INITIAL_WEIGHTS,
    LOAD_SECONDS,
    EndedError,
    NotLoadedError,
    Published,
    load_adapters,
)
from sleuth.engines.remote.weight_transfer import (
    ID_FIELD,
    BroadcastWeights,
    GroupError,
    Transfer,
    update_info_of,
)
from sleuth.engines.sampling import request_seed
from sleuth.learn.master_weights import WeightSource
from sleuth.types import Sampling

FAILED = (RefusedError, ServerFailedError)


@dataclass(frozen=True, slots=True)
class Vllm:
    """The API for the served model `model`. `scaled`: log-probabilities are those after temperature. To load weights it
    needs `VLLM_SERVER_DEV_MODE=1`; to sleep, `--enable-sleep-mode` too; to load adapters `--enable-lora` and
    `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`. Requests name `adapter` if there is one, and raise HttpClientError on
    failure."""

    model: str
    scaled: bool = False
    adapter: str = ""

    path = "/v1/completions"
    details = "/version"
    labels_completions = False
    """Whether every completion carries the label of its weights; otherwise it takes a request of its own."""
    needed = ("/weight_info", "/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume")
    """The endpoints that training needs."""
    remedy = "it with VLLM_SERVER_DEV_MODE=1, or a newer vLLM (0.32.0 has them)"

    def body(self, prompt: Sequence[int], sampling: Sampling, *, limit: int, eos_ids: Collection[int]) -> Body:
        """A request to continue `prompt` by at most `limit` tokens, up to a stop string or one of `eos_ids`."""
        seed = {"seed": request_seed(sampling.key)} if sampling.temperature else {}
        return {
            "model": self.adapter or self.model,
            "prompt": list(prompt),
            "max_tokens": limit,
            **sampling_parameters(sampling, eos_ids),
            "include_stop_str_in_output": True,
            "logprobs": 1,
            "return_token_ids": True,
            **seed,
        }

    def read(self, answer: dict[str, Any], sampling: Sampling) -> RawCompletion:
        """The parsed answer. Raises one of `MALFORMED` for another shape, `Aborted` for an aborted request."""
        [choice] = answer["choices"]
        tokens, reason = choice.get("token_ids"), choice["finish_reason"]
        if tokens is None and reason != ABORTED:
            raise ValueError("no token ids; serve the model with SGLang or vLLM")
        logprobs = choice["logprobs"]["token_logprobs"] if tokens else ()
        raw = make_raw_completion(tokens or (), logprobs, sampling, scaled=self.scaled, finish_reason=reason)
        if reason == ABORTED:
            raise Aborted("it gave up: somebody aborted the request", raw)
        return raw

    async def weights(self, client: HttpClient) -> str:
        """The label of the server's current weights."""
        return str((await client.get("/weight_info"))["weight_version"])

    async def interrupt(self, client: HttpClient) -> None:
        """Aborts all turns, which return what was sampled, and starts none until the next `load`."""
        await self._pause(client, "abort")

    async def load(self, client: HttpClient, published: Published) -> None:
        """Loads these weights, sets their label and clears the prefix cache. No request may be in progress."""
        await self._pause(client)
        try:
            await self._reload(client, str(published.path))
        except FAILED as error:
            await client.get("/health")  # 503 if its engine died, which the load answers with 500 too
            await self._restore(client)
            raise NotLoadedError(f"could not load {published.path}: {error}") from None
        await self._adopt(client, published.label)

    async def receive(self, client: HttpClient, published: Published, source: WeightSource, by: Transfer) -> None:
        """As `load`, in another way. Raises NotLoadedError if the server takes none, after which it may be paused and
        `load` can follow, and EndedError if it may have ended by them."""
        await self._pause(client)
        try:
            if by == "as adapters":
                await load_adapters(client, published, "/v1")
            else:
                await self._take_broadcast(client, source)
        except (*FAILED, GroupError) as error:
            for path in ("/finish_weight_update", "/shutdown_weight_transfer_engine"):
                with suppress(HttpClientError):
                    await client.post(path, seconds=LOAD_SECONDS)
            raise NotLoadedError(f"takes no weights {by} ({error})") from None
        except LostResponseError as error:
            raise EndedError(f"{error}, while it took weights {by}") from None
        await self._adopt(client, published.label)

    async def takes_broadcast(self, client: HttpClient) -> bool:
        """By the refusal of a request without an id, which changes nothing and names the field of the id."""
        try:
            await client.post("/init_weight_transfer_engine", {"init_info": {"rank_offset": 1, "world_size": 2}})
        except HttpClientError as error:
            return isinstance(error, FAILED) and ID_FIELD in str(error)
        return False

    async def sleep(self, client: HttpClient) -> None:
        """Releases the card's memory, weights included; no request may run. To wake: `reserve`, `load`, `wake`."""
        await client.post("/sleep", params={"level": "2"})  # which discards the weights

    async def reserve(self, client: HttpClient) -> None:
        """Allocates memory for the weights, after `sleep` and before `load`."""
        await client.post("/wake_up", params={"tags": "weights"})

    async def wake(self, client: HttpClient) -> None:
        """Allocates the rest of the memory, after `load`."""
        await client.post("/wake_up", params={"tags": "kv_cache"})

    async def _pause(self, client: HttpClient, mode: str = "wait") -> None:
        await client.post("/pause", params={"mode": mode}, seconds=LOAD_SECONDS)

    async def _reload(self, client: HttpClient, folder: str) -> None:
        body = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        await client.post("/collective_rpc", body, seconds=LOAD_SECONDS)

    async def _restore(self, client: HttpClient) -> None:
        """Has a server that refused weights load those that it was started with, and resume: the refusal left it paused
        and without any (vLLM 0.32.0), and with none its engine ends at the next completion. Where that fails too it
        stays paused, which the next check says."""
        with suppress(HttpClientError, *MALFORMED):
            await self._reload(client, (await client.get("/v1/models"))["data"][0]["root"])
            await self._adopt(client, INITIAL_WEIGHTS)

    async def _take_broadcast(self, client: HttpClient, source: WeightSource) -> None:
        weights = BroadcastWeights(source)
        try:
            workers = int((await client.get("/get_world_size"))["world_size"])
            init = {"init_info": weights.init_info(workers)}
            await weights.join(workers, client.post("/init_weight_transfer_engine", init, seconds=LOAD_SECONDS))
            await client.post("/start_weight_update")
            update = {"update_info": update_info_of(weights.outline)}
            await weights.send(client.post("/update_weights", update, seconds=LOAD_SECONDS))
            await client.post("/finish_weight_update", seconds=LOAD_SECONDS)
            await client.post("/shutdown_weight_transfer_engine")
        finally:
            weights.group.abort()

    async def _adopt(self, client: HttpClient, label: str) -> None:
        """Ends a load: drops what old weights cached, sets the label, and resumes."""
        reset = await client.post("/reset_prefix_cache")
        if isinstance(reset, dict) and reset.get("success") is False:  # with status 200
            raise ServerFailedError("keeps what old weights cached: POST /reset_prefix_cache says success: false")
        await client.post("/update_weight_version", {"new_version": label})
        await client.post("/resume")
