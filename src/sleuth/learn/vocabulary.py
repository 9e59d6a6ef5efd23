"""The vocabulary projection: the widest array of a language model, made in chunks and never held whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sleuth.learn.products import multiply

LOGITS_AT_ONCE = 2**19
"""A chunk has so many logits (2 MB in fp32): they stay in the processor's cache."""

LEAST_ROWS = 128
"""But it has so many rows at least: the weights are read once a chunk, and their gradient is written."""

LogprobGrad = Callable[[slice, Tensor], tuple[Tensor, Tensor]]
"""(a stretch of the M rows, the log-probabilities (n,) of their targets) -> what they add to the loss, and its
derivative by each of them (n,)."""


def chosen_logprobs(head: nn.Linear, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability of each target, and the entropy of its distribution in nats, without gradient: (M,) each.

    `hidden` (M, width), `targets` (M,) int64. The softmax is fp32 (fp64 where the model is), at `temperature`.
    """
    return _ChosenLogprobs.apply(hidden, head.weight, head.bias, targets, temperature)


def logprobs_with_grad(
    head: nn.Linear, hidden: Tensor, targets: Tensor, temperature: float, logprob_grad: LogprobGrad
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss to which each chunk adds by itself, and, without gradient, what `chosen_logprobs` tells.

    What `logprob_grad` says of a chunk is turned into gradients while its softmax is there, so that none is computed
    again: a quarter of the projection's work less than with `chosen_logprobs`, which serves losses that need all of a
    row first.
    """
    return _LogprobsWithGrad.apply(hidden, head.weight, head.bias, targets, temperature, logprob_grad)


class _ChosenLogprobs(torch.autograd.Function):
    """d log p(target) / d logits is one-hot minus softmax. The backward pass computes the softmax again, chunk by chunk
    in the same piece of memory: that costs less than to write all of it and read it back."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropy, lse = (hidden.new_empty(len(targets), dtype=_precision(hidden)) for _ in range(3))
        exponentials = None
        for part, logits in _logits_in_chunks(hidden, weight, bias, temperature):
            exponentials = torch.empty_like(logits) if exponentials is None else exponentials[: len(logits)]
            largest = logits.amax(dim=-1, keepdim=True)  # (n, 1)
            torch.exp(logits.sub_(largest), out=exponentials)
            total = exponentials.sum(dim=-1)
            logprobs[part] = logits.gather(1, targets[part, None])[:, 0] - total.log()
            entropy[part] = total.log() - exponentials.mul_(logits).sum(dim=-1) / total
            lse[part] = total.log() + largest[:, 0]
        ctx.save_for_backward(hidden, weight, bias, targets, lse)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        hidden, weight, bias, targets, lse = ctx.saved_tensors
        of_hidden, of_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        of_bias = None if bias is None else torch.zeros_like(bias)
        scale = (gradients[0] / ctx.temperature)[:, None]  # (M, 1)
        for part, logits in _logits_in_chunks(hidden, weight, bias, ctx.temperature):
            softmax = logits.sub_(lse[part, None]).exp_()
            of_logits = softmax.mul_(-scale[part]).scatter_add_(1, targets[part, None], scale[part]).to(weight.dtype)
            of_hidden[part] = multiply(of_logits, weight.T)
            of_weight.addmm_(of_logits.T, hidden[part])
            if of_bias is not None:
                of_bias += of_logits.sum(dim=0)
        return of_hidden, of_weight, of_bias, None, None


class _LogprobsWithGrad(torch.autograd.Function):
    """The gradients of a loss whose own derivative is known chunk by chunk, made on the way forward."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        logprob_grad: LogprobGrad,
    ) -> tuple[Tensor, Tensor, Tensor]:
        logprobs, entropy = (hidden.new_empty(len(targets), dtype=_precision(hidden)) for _ in range(2))
        of_hidden, of_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        of_bias = None if bias is None else torch.zeros_like(bias)
        loss, exponentials = hidden.new_zeros((), dtype=_precision(hidden)), None
        for part, logits in _logits_in_chunks(hidden, weight, bias, temperature):
            exponentials = torch.empty_like(logits) if exponentials is None else exponentials[: len(logits)]
            torch.exp(logits.sub_(logits.amax(dim=-1, keepdim=True)), out=exponentials)
            total = exponentials.sum(dim=-1)
            logprobs[part] = logits.gather(1, targets[part, None])[:, 0] - total.log()
            entropy[part] = total.log() - logits.mul_(exponentials).sum(dim=-1) / total
            share, grads = logprob_grad(part, logprobs[part])
            loss += share
            scale = (grads / temperature)[:, None]  # (n, 1)
            softmax = exponentials.mul_(-scale / total[:, None])
            of_logits = softmax.scatter_add_(1, targets[part, None], scale).to(weight.dtype)
            of_hidden[part] = multiply(of_logits, weight.T)
            of_weight.addmm_(of_logits.T, hidden[part])
            if of_bias is not None:
                of_bias += of_logits.sum(dim=0)
        ctx.save_for_backward(of_hidden, of_weight, of_bias)
        ctx.mark_non_differentiable(logprobs, entropy)
        return loss, logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ours = [None if gradient is None else gradient * gradients[0] for gradient in ctx.saved_tensors]
        return (*ours, None, None, None)


def _logits_in_chunks(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float
) -> Iterator[tuple[slice, Tensor]]:
    """Stretches of the M rows with their logits (n, V), which the next chunk may overwrite."""
    size = max(LEAST_ROWS, LOGITS_AT_ONCE // len(weight))
    space = hidden.new_empty(min(size, len(hidden)), len(weight))
    for first in range(0, len(hidden), size):
        part = slice(first, min(first + size, len(hidden)))
        logits = multiply(hidden[part], weight, bias, space=space).to(_precision(hidden))
        yield part, logits if temperature == 1 else logits.div_(temperature)


def _precision(hidden: Tensor) -> torch.dtype:
    return torch.promote_types(hidden.dtype, torch.float32)
