"""What SGLang is told by who trains. The facts and their sources: `sleuth.serve.emulator.sglang`, which answers it."""

from __future__ import annotations

from sleuth.engines.remote.control import LOAD_SECONDS, NotLoadedError
from sleuth.engines.remote.http_client import FailedError, HttpClient, RefusedError
from sleuth.engines.remote.published import Published


class SglangControl:
    """To sleep, it needs `--enable-memory-saver`."""

    with_answers = True

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
        except (RefusedError, FailedError) as error:
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
