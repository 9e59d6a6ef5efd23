"""What SGLang is told by who trains. The facts and their sources: `sleuth.serve.emulator.sglang`, which answers it."""

from __future__ import annotations

from sleuth.engines.remote.control import LOAD_SECONDS, NotLoadedError
from sleuth.engines.remote.http_client import FailedError, Line, RefusedError
from sleuth.engines.remote.published import Published


class SglangControl:
    """To sleep, it needs `--enable-memory-saver`."""

    with_answers = True

    async def weights(self, line: Line) -> str:
        """See `Control`."""
        try:
            return str((await line.get("/model_info"))["weight_version"])
        except RefusedError:  # older versions have no such path
            return str((await line.get("/get_weight_version"))["weight_version"])

    async def load(self, line: Line, published: Published) -> None:
        """See `Control`."""
        asked = {"model_path": str(published.path), "weight_version": published.label, "flush_cache": True}
        await line.post("/pause_generation", {})
        try:
            await line.post("/update_weights_from_disk", asked, seconds=LOAD_SECONDS)
        except (RefusedError, FailedError) as error:
            raise NotLoadedError(f"could not load {published.path}: {error}") from None
        await line.post("/continue_generation", {})

    async def sleep(self, line: Line) -> None:
        """See `Control`."""
        await line.post("/release_memory_occupation", {})

    async def reserve(self, line: Line) -> None:
        """See `Control`."""
        await line.post("/resume_memory_occupation", {"tags": ["weights"]})

    async def wake(self, line: Line) -> None:
        """See `Control`."""
        await line.post("/resume_memory_occupation", {"tags": ["kv_cache"]})
