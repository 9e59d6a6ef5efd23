"""Server control: loading weights, naming their version, releasing memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from transformers import PreTrainedModel

from sleuth.engines.remote.broadcast import GroupError, broadcast_weights
from sleuth.engines.remote.http_client import (
    HttpClient,
    HttpClientError,
    LostResponseError,
    RefusedError,
    ServerFailedError,
)
from sleuth.engines.remote.published import Published
from sleuth.engines.remote.shared_memory import SharedWeights, update_info_of
from sleuth.engines.remote.wire import MALFORMED

INITIAL_WEIGHTS = "default"
"""Both servers' name for the weights that they started with: one that returns it has been restarted."""

LOAD_SECONDS = 600.0  # timeout for loading weights; a shared folder may be slow
FLUSH_SECONDS = 10  # how long SGLang may wait for its scheduler to let go of the last request

SGLANG_SIZES = ("tp_size", "pp_size", "dp_size")
"""SGLang's names for the numbers of cards that share a model or its requests."""


class NotLoadedError(HttpClientError):
    """The server could not load the weights; the message is the server's own."""


class EndedError(HttpClientError):
    """The server stopped answering while it took weights from memory, which may have ended it."""


class Control(Protocol):
    """One kind of server's control API. Every method raises HttpClientError on failure."""

    labels_completions: bool
    """Whether every completion carries the label of its weights; otherwise it takes a request of its own."""
    paths: Sequence[str]
    """The endpoints of `load`, all of which take POST."""

    async def weights(self, client: HttpClient) -> str:
        """The label of the server's current weights."""
        ...

    async def load(self, client: HttpClient, published: Published) -> None:
        """Load these weights, set their label and clear the prefix cache. No request may be in progress."""
        ...

    async def receive(self, client: HttpClient, published: Published, shared: SharedWeights) -> None:
        """As `load`, from the memory of this machine. Raises NotLoadedError if the server takes none, after which it
        may be paused and `load` can follow, and EndedError if it may have ended by them."""
        ...

    async def sleep(self, client: HttpClient) -> None:
        """Release the card's memory, weights included; no request may run. To wake: `reserve`, `load`, `wake`."""
        ...

    async def reserve(self, client: HttpClient) -> None:
        """Allocate memory for the weights, after `sleep` and before `load`."""
        ...

    async def wake(self, client: HttpClient) -> None:
        """Allocate the rest of the memory, after `load`."""
        ...


class VllmControl:
    """Needs `VLLM_SERVER_DEV_MODE=1`; to sleep, `--enable-sleep-mode` too."""

    labels_completions = False
    paths: Sequence[str] = ("/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume")

    async def weights(self, client: HttpClient) -> str:
        """See `Control`."""
        return str((await client.get("/weight_info"))["weight_version"])

    async def load(self, client: HttpClient, published: Published) -> None:
        """See `Control`."""
        await client.post("/pause", params={"mode": "wait"}, seconds=LOAD_SECONDS)
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(published.path)}}
        try:
            await client.post("/collective_rpc", body, seconds=LOAD_SECONDS)
        except (RefusedError, ServerFailedError) as error:
            await client.get("/health")  # 503 if its engine died, which the load answers with 500 too
            await self._restore(client)
            raise NotLoadedError(f"could not load {published.path}: {error}") from None
        await self._adopt(client, published.label)

    async def _restore(self, client: HttpClient) -> None:
        """Has a server that refused weights load those that it was started with, and resume: the refusal left it paused
        and without any (vLLM 0.32.0), and with none its engine ends at the next completion. Where that fails too it
        stays paused, which the next check says."""
        with suppress(HttpClientError, *MALFORMED):
            own = (await client.get("/v1/models"))["data"][0]["root"]
            body = {"method": "reload_weights", "kwargs": {"weights_path": own}}
            await client.post("/collective_rpc", body, seconds=LOAD_SECONDS)
            await self._adopt(client, INITIAL_WEIGHTS)

    async def receive(self, client: HttpClient, published: Published, shared: SharedWeights) -> None:
        """See `Control`."""
        await client.post("/pause", params={"mode": "wait"}, seconds=LOAD_SECONDS)
        started = False
        try:
            await client.post("/init_weight_transfer_engine", {"init_info": {"packed": False}})
            started = True
            await client.post("/start_weight_update")
            await client.post("/update_weights", {"update_info": shared.update_info()}, seconds=LOAD_SECONDS)
            await client.post("/finish_weight_update", seconds=LOAD_SECONDS)
        except (RefusedError, ServerFailedError) as error:
            if started:
                with suppress(RefusedError, ServerFailedError):
                    await client.post("/finish_weight_update", seconds=LOAD_SECONDS)
            raise NotLoadedError(f"takes no weights from memory ({error})") from None
        await self._adopt(client, published.label)

    async def receive_broadcast(self, client: HttpClient, published: Published, model: PreTrainedModel) -> None:
        """As `receive`, from another card (`sleuth.engines.remote.broadcast`)."""
        await client.post("/pause", params={"mode": "wait"}, seconds=LOAD_SECONDS)
        try:
            await self._take_broadcast(client, model)
        except (RefusedError, ServerFailedError, GroupError) as error:
            for path in ("/finish_weight_update", "/shutdown_weight_transfer_engine"):
                with suppress(HttpClientError):
                    await client.post(path)
            raise NotLoadedError(f"takes no weights by broadcast ({error})") from None
        except LostResponseError as error:
            raise EndedError(f"{error}, while it took weights by broadcast") from None
        await self._adopt(client, published.label)

    async def _take_broadcast(self, client: HttpClient, model: PreTrainedModel) -> None:
        weights = broadcast_weights(model)
        try:
            workers = int((await client.get("/get_world_size"))["world_size"])
            init = {"init_info": weights.init_info(workers)}
            await weights.join(workers, client.post("/init_weight_transfer_engine", init, seconds=LOAD_SECONDS))
            await client.post("/start_weight_update")
            update = {"update_info": update_info_of(weights.weights)}
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

    async def sleep(self, client: HttpClient) -> None:
        """See `Control`. Level 2 discards the weights."""
        await client.post("/sleep", params={"level": "2"})

    async def reserve(self, client: HttpClient) -> None:
        """See `Control`."""
        await client.post("/wake_up", params={"tags": "weights"})

    async def wake(self, client: HttpClient) -> None:
        """See `Control`."""
        await client.post("/wake_up", params={"tags": "kv_cache"})


class SglangControl:
    """To sleep, it needs `--enable-memory-saver`."""

    labels_completions = True
    paths: Sequence[str] = ("/pause_generation", "/update_weights_from_disk", "/continue_generation")

    async def weights(self, client: HttpClient) -> str:
        """See `Control`."""
        try:
            return str((await client.get("/model_info"))["weight_version"])
        except RefusedError:  # older versions have no such path
            return str((await client.get("/get_weight_version"))["weight_version"])

    async def load(self, client: HttpClient, published: Published) -> None:
        """See `Control`."""
        body = {"model_path": str(published.path), "weight_version": published.label, "flush_cache": False}
        await client.post("/pause_generation", {})
        try:
            await client.post("/update_weights_from_disk", body, seconds=LOAD_SECONDS)
        except (RefusedError, ServerFailedError) as error:
            with suppress(HttpClientError):
                await client.post("/continue_generation", {})  # with its old weights, to which it has gone back
            raise NotLoadedError(f"could not load {published.path}: {error}") from None
        await self._resume(client)

    async def receive(self, client: HttpClient, published: Published, shared: SharedWeights) -> None:
        """See `Control`."""
        await self._require_one_card(client)
        await client.post("/pause_generation", {})
        body = {
            "serialized_named_tensors": shared.serialized_named_tensors(),
            "weight_version": published.label,
            "flush_cache": False,
        }
        try:
            await self._update_from_tensor(client, body)
        except (RefusedError, ServerFailedError) as error:
            raise NotLoadedError(f"takes no weights from memory ({error})") from None
        await self._resume(client)

    async def _resume(self, client: HttpClient) -> None:
        """Ends a load: drops what old weights cached, and continues."""
        try:
            await client.post("/flush_cache", params={"timeout": str(FLUSH_SECONDS)}, seconds=LOAD_SECONDS)
        except RefusedError as error:  # requests are under way; for an update of weights that is a failed load
            raise ServerFailedError(f"keeps what old weights cached: POST /flush_cache {error}") from None
        await client.post("/continue_generation", {})

    async def _require_one_card(self, client: HttpClient) -> None:
        """Raises NotLoadedError for a server that the handles of a card's memory would end."""
        try:
            info = await client.get("/server_info")
        except RefusedError:  # older versions have no such path
            info = await client.get("/get_server_info")
        wanted = {"device": "cuda"} | dict.fromkeys(SGLANG_SIZES, 1)
        found = {name: info.get(name) for name in wanted} if isinstance(info, dict) else {}
        if found != wanted:
            described = [", ".join(f"{name} {value}" for name, value in of.items()) for of in (found, wanted)]
            raise NotLoadedError(f"takes no weights from memory (it has {described[0] or None}, not {described[1]})")

    async def _update_from_tensor(self, client: HttpClient, body: dict[str, Any]) -> None:
        in_session = await self._begin_update(client)
        try:
            await client.post("/update_weights_from_tensor", body, seconds=LOAD_SECONDS)
        except (RefusedError, ServerFailedError):
            if in_session:
                with suppress(RefusedError, ServerFailedError):
                    await client.post("/end_weight_update", {}, seconds=LOAD_SECONDS)
            raise
        except HttpClientError as error:
            raise EndedError(f"{error}, while it took weights from memory") from None
        if in_session:
            await client.post("/end_weight_update", {}, seconds=LOAD_SECONDS)

    async def _begin_update(self, client: HttpClient) -> bool:
        """Opens a session of weight updates, after ending one that a killed run left open. Returns False for a server
        that has no sessions."""
        try:
            await client.post("/begin_weight_update", {})
        except RefusedError as error:
            if error.is_missing:
                return False
            await client.post("/end_weight_update", {}, seconds=LOAD_SECONDS)
            await client.post("/begin_weight_update", {})
        return True

    async def sleep(self, client: HttpClient) -> None:
        """See `Control`."""
        await client.post("/release_memory_occupation", {})

    async def reserve(self, client: HttpClient) -> None:
        """See `Control`."""
        await client.post("/resume_memory_occupation", {"tags": ["weights"]})

    async def wake(self, client: HttpClient) -> None:
        """See `Control`."""
        await client.post("/resume_memory_occupation", {"tags": ["kv_cache"]})
