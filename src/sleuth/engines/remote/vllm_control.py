"""What vLLM is told by who trains. The facts and their sources: `sleuth.serve.emulator.vllm`, which answers it."""

from __future__ import annotations

from sleuth.engines.remote.control import LOAD_SECONDS, NotLoadedError
from sleuth.engines.remote.http_client import FailedError, Line, RefusedError
from sleuth.engines.remote.published import Published


class VllmControl:
    """Needs `VLLM_SERVER_DEV_MODE=1`; to sleep, `--enable-sleep-mode` too."""

    with_answers = False

    async def weights(self, line: Line) -> str:
        """See `Control`."""
        return str((await line.get("/weight_info"))["weight_version"])

    async def load(self, line: Line, published: Published) -> None:
        """See `Control`."""
        await line.post("/pause", params={"mode": "wait"}, seconds=LOAD_SECONDS)
        asked = {"method": "reload_weights", "kwargs": {"weights_path": str(published.path)}}
        try:
            await line.post("/collective_rpc", asked, seconds=LOAD_SECONDS)
        except (RefusedError, FailedError) as error:
            raise NotLoadedError(f"could not load {published.path}: {error}") from None
        await line.post("/reset_prefix_cache")
        await line.post("/update_weight_version", {"new_version": published.label})
        await line.post("/resume")

    async def sleep(self, line: Line) -> None:
        """See `Control`. Level 2: the weights come anew."""
        await line.post("/sleep", params={"level": "2"})

    async def reserve(self, line: Line) -> None:
        """See `Control`."""
        await line.post("/wake_up", params={"tags": "weights"})

    async def wake(self, line: Line) -> None:
        """See `Control`."""
        await line.post("/wake_up", params={"tags": "kv_cache"})
