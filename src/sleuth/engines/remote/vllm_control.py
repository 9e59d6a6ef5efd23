"""What vLLM is told by who trains. The facts and their sources: `sleuth.serve.emulator.vllm`, which answers it."""

from __future__ import annotations

from sleuth.engines.remote.control import LOAD_SECONDS, NotLoadedError
from sleuth.engines.remote.http_client import FailedError, HttpClient, RefusedError
from sleuth.engines.remote.published import Published


class VllmControl:
    """Needs `VLLM_SERVER_DEV_MODE=1`; to sleep, `--enable-sleep-mode` too."""

    with_answers = False

    async def weights(self, client: HttpClient) -> str:
        """See `Control`."""
        return str((await client.get("/weight_info"))["weight_version"])

    async def load(self, client: HttpClient, published: Published) -> None:
        """See `Control`."""
        await client.post("/pause", params={"mode": "wait"}, seconds=LOAD_SECONDS)
        asked = {"method": "reload_weights", "kwargs": {"weights_path": str(published.path)}}
        try:
            await client.post("/collective_rpc", asked, seconds=LOAD_SECONDS)
        except (RefusedError, FailedError) as error:
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
