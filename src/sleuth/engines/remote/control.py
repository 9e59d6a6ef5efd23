"""What a trainer tells a server besides what to write: one seam, and a file for each server."""

from __future__ import annotations

from typing import Protocol

from sleuth.engines.remote.http_client import HttpClient, HttpClientError, RefusedError, ServerFailedError
from sleuth.engines.remote.published import Published

FIRST_WEIGHTS = "default"
"""What both servers call the weights that they began with: one that says so was started anew."""

LOAD_SECONDS = 600.0  # for weights to be read; a shared folder may be far away


class NotLoadedError(HttpClientError):
    """The server could not take the weights; the message is in its words."""


class Control(Protocol):
    """One server's way of being told. Everything raises LineError where the server does not do it."""

    labels_completions: bool
    """Whether every completion carries the name of the weights that wrote it; else it is asked for."""

    async def weights(self, client: HttpClient) -> str:
        """What the server calls the weights that it has now."""
        ...

    async def load(self, client: HttpClient, published: Published) -> None:
        """Take these weights and their label, and forget what was read with others; nothing is under way."""
        ...

    async def sleep(self, client: HttpClient) -> None:
        """Give the card's memory back, weights too; nothing is under way. What follows is `load`, then `wake`."""
        ...

    async def reserve(self, client: HttpClient) -> None:
        """Between `sleep` and `load`: take memory for the weights."""
        ...

    async def wake(self, client: HttpClient) -> None:
        """After `load`: take the rest of the memory."""
        ...


class VllmControl:
    """Needs `VLLM_SERVER_DEV_MODE=1`; to sleep, `--enable-sleep-mode` too."""

    labels_completions = False

    async def weights(self, client: HttpClient) -> str:
        """See `Control`."""
        return str((await client.get("/weight_info"))["weight_version"])

    async def load(self, client: HttpClient, published: Published) -> None:
        """See `Control`."""
        await client.post("/pause", params={"mode": "wait"}, seconds=LOAD_SECONDS)
        asked = {"method": "reload_weights", "kwargs": {"weights_path": str(published.path)}}
        try:
            await client.post("/collective_rpc", asked, seconds=LOAD_SECONDS)
        except (RefusedError, ServerFailedError) as error:
            raise NotLoadedError(f"could not load {published.path}: {error}") from None
        await client.post("/reset_prefix_cache")
        await client.post("/update_weight_version", {"new_version": published.label})
        await client.post("/resume")

    async def sleep(self, client: HttpClient) -> None:
        """See `Control`. Level 2: the weights come anew."""
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

    async def weights(self, client: HttpClient) -> str:
        """See `Control`."""
        try:
            return str((await client.get("/model_info"))["weight_version"])
        except RefusedError:  # older versions have no such path
            return str((await client.get("/get_weight_version"))["weight_version"])

    async def load(self, client: HttpClient, published: Published) -> None:
        """See `Control`."""
        asked = {"model_path": str(published.path), "weight_version": published.label, "flush_cache": True}
        await client.post("/pause_generation", {})
        try:
            await client.post("/update_weights_from_disk", asked, seconds=LOAD_SECONDS)
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
