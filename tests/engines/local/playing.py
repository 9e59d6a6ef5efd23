"""How tests of the engine in this process ask it, and take its memory."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def gather(*coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
    """The results of coroutines that run side by side."""

    async def joint() -> list[Any]:
        return await asyncio.wait_for(asyncio.gather(*coroutines), timeout=120)

    return asyncio.run(joint())


@contextmanager
def out_of_memory_above(model: nn.Module, tokens: int) -> Iterator[None]:
    """Forwards of more tokens run out of memory."""

    def limited(module: nn.Module, args: object, kwargs: dict[str, torch.Tensor]) -> None:
        if kwargs["input_ids"].shape[1] > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory")

    hook = model.register_forward_pre_hook(limited, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
