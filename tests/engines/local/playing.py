"""How tests of the engine in this process ask it, and take its memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sleuth.engines.local.slots import SlotTable
from sleuth.types import Completion


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


def expected_logits(model: nn.Module, prompt: Sequence[int], tokens: Sequence[int], temperature: float = 1.0) -> Any:
    """Those of `tokens` after `prompt`, by a plain forward over all of them."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    return logits / (temperature or 1.0)


def require_logprobs(
    model: nn.Module, prompt: Sequence[int], completion: Completion, temperature: float = 1.0, bound: float = 1e-4
) -> list[float]:
    """The log-probabilities of a completion are those of a plain forward: fp32, whose sums are in another order.
    Returns how far they are from those."""
    logits = expected_logits(model, prompt, completion.tokens, temperature)
    expected = logits.log_softmax(-1).gather(1, torch.tensor(completion.tokens)[:, None])[:, 0]
    assert completion.logprobs == pytest.approx(expected.tolist(), abs=bound)
    return (torch.tensor(completion.logprobs) - expected).abs().tolist()


def place_ragged_groups(table: SlotTable, read: Callable[[], None]) -> int:
    """Places 256 episodes of 400 to 3,900 tokens in 32 groups, each of which is read before the next; returns the
    number of distinct tokens."""
    random, distinct = np.random.default_rng(0), 0
    for group in range(32):
        prompt = [group] * int(random.integers(250, 400))
        distinct += len(prompt)
        for sample in range(8):
            own = [1_000 + sample] * (int(random.integers(400, 3_900)) - len(prompt))
            distinct += len(own)
            tokens = [*prompt, 5_000 + 8 * group + sample, *own[1:]]
            placement = table.place(tokens)
            assert placement is not None
            assert placement.reused == (len(prompt) if sample else 0)
            assert table.occupy(placement, tokens)
            read()
    return distinct
