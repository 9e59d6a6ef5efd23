"""A learner's weights, as servers are given them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sleuth.learn.adapters import base_state, merged_state
from sleuth.ranks import ALONE, Ranks

Result = TypeVar("Result")


class WeightSource:
    """The weights of a model that this process holds whole. `sleuth.learn.shards` has the source of one in shards."""

    gathers = False
    """Whether ranks must gather the weights, which they do in `together` only."""
    one_pass: AbstractContextManager[object] = nullcontext()
    """What a thread enters that sends all buckets to a server."""

    def __init__(self, model: PreTrainedModel, ranks: Ranks = ALONE) -> None:
        self.model = model
        self.ranks = ranks

    @property
    def at_hand(self) -> bool:
        """Whether this process can read the weights now."""
        return True

    def together(self, work: Callable[[], Result]) -> Result:
        """Runs `work` on rank 0, which may read the weights in it; every rank calls this and returns the result, or
        raises the error."""
        return self.ranks.broadcast(work)

    def outline(self) -> dict[str, Tensor]:
        """Tensors of the names, shapes and dtypes of all weights, in the order of `buckets`."""
        return base_state(self.model)

    def buckets(self, *, merged: bool = True) -> Iterator[dict[str, Tensor]]:
        """All weights by name, adapters merged or left out; of tied ones each name. A bucket is emptied when the next
        one is asked for."""
        yield merged_state(self.model) if merged else base_state(self.model)

    def logprobs(self, prompt: Sequence[int], completion: Sequence[int], temperature: float) -> list[float]:
        """The learner's log-probabilities of the tokens of `completion` after `prompt`."""
        return learner_logprobs(self.model, prompt, completion, temperature)


@torch.no_grad()
def learner_logprobs(
    model: PreTrainedModel,
    prompt: Sequence[int],
    completion: Sequence[int],
    temperature: float,
    device: torch.device | None = None,
) -> list[float]:
    """The model's log-probabilities of the tokens of `completion` after `prompt`, computed on its device, or this."""
    training = model.training
    model.eval()
    try:
        tokens = torch.tensor([[*prompt, *completion]], device=device or model.device)
        logits = model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        logprobs = (logits / temperature).log_softmax(dim=-1).gather(1, tokens[0, len(prompt) :, None])
    finally:
        model.train(training)
    return logprobs[:, 0].tolist()
