"""Server control: loading weights, naming their version, releasing memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from sleuth.engines.remote.http_client import HttpClient, HttpClientError, RefusedError, ServerFailedError
from sleuth.engines.remote.published import Published

INITIAL_WEIGHTS = "default"
"""Both servers' name for the weights that they started with: one that returns it has been restarted."""

LOAD_SECONDS = 600.0  # timeout for loading weights; a shared folder may be slow


class NotLoadedError(HttpClientError):
    """The server could not load the weights; the message is the server's own."""


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
    paths = ("/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume")

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
            raise NotLoadedError(f"could not load {published.path}: {error}") from None
        await self._adopt(client, published)

    async def receive(self, client: HttpClient, published: Published, update_info: dict[str, Any]) -> None:
        """As `load`, from memory (`sleuth.engines.remote.shared_memory`). After NotLoadedError the server is paused,
        and `load` can follow."""
        await client.post("/pause", params={"mode": "wait"}, seconds=LOAD_SECONDS)
        started = False
        try:
            await client.post("/init_weight_transfer_engine", {"init_info": {"packed": False}})
            started = True
            await client.post("/start_weight_update")
            await client.post("/update_weights", {"update_info": update_info}, seconds=LOAD_SECONDS)
            await client.post("/finish_weight_update", seconds=LOAD_SECONDS)
        except (RefusedError, ServerFailedError) as error:
            if started:
                with suppress(RefusedError, ServerFailedError):
                    await client.post("/finish_weight_update", seconds=LOAD_SECONDS)
            raise NotLoadedError(f"takes no weights from memory ({error})") from None
        await self._adopt(client, published)

    async def _adopt(self, client: HttpClient, published: Published) -> None:
        """Ends a load: drops what old weights cached, sets the label, and resumes."""
        reset = await client.post("/reset_prefix_cache")
        if isinstance(reset, dict) and reset.get("success") is False:  # with status 200
            raise ServerFailedError("keeps what old weights cached: POST /reset_prefix_cache says success: false")
        await client.post("/update_weight_version", {"new_version": published.label})
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
    paths = ("/pause_generation", "/update_weights_from_disk", "/continue_generation")

    async def weights(self, client: HttpClient) -> str:
        """See `Control`."""
        try:
            return str((await client.get("/model_info"))["weight_version"])
        except RefusedError:  # older versions have no such path
            return str((await client.get("/get_weight_version"))["weight_version"])

    async def load(self, client: HttpClient, published: Published) -> None:
        """See `Control`."""
        body = {"model_path": str(published.path), "weight_version": published.label, "flush_cache": True}
        await client.post("/pause_generation", {})
        try:
            await client.post("/update_weights_from_disk", body, seconds=LOAD_SECONDS)
        except (RefusedError, ServerFailedError) as error:
            raise NotLoadedError(f"could not load {published.path}: {error}") from None
        await client.post("/continue_generation", {})

    async def sleep(self, client: HttpClient) -> None:
        """See `Control`."""
        await client.post("/release_memory_occupation", {})

    async def reserve(self, client: HttpClient) -> None:
        """See `Control`."""
        await client.post("/resume_memory_occupation", {"tags": ["weights"]})

    async def wake(self, client: HttpClient) -> None:
        """See `Control`."""
        await client.post("/resume_memory_occupation", {"tags": ["kv_cache"]})
