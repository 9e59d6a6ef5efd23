"""Log-probabilities over the vocabulary, and embedding gradients, without the largest arrays of a language model.

Logits are computed in chunks and never stored for all rows; gradients of the head and the embedding can be added to
`.grad` in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from sleuth.learn.compiled import LOG2_E, can_be_read, compiled, compiled_in_parallel, greatest, power_of_two, prange
from sleuth.learn.products import COLUMNS, MKL_IS_SLOW, multiply, replaced_forwards, weight_gradient

CHUNK_LOGITS = 2**21
"""Logits of a chunk (8 MB in fp32), which fit the last-level cache."""

MIN_CHUNK_ROWS = 128
"""Minimum rows of a chunk, since each chunk reads the weights and writes their gradient once."""

MIN_PARALLEL_SIZE = 2**15
"""With fewer elements, waking a second thread costs more than it saves."""
FP32_SUM_SIZE = 2**11
"""Elements summed in fp32; these partial sums are added in fp64."""

LogprobGrad = Callable[[slice, Tensor], tuple[Tensor, Tensor]]
"""(slice of the M rows, log-probabilities (n,) of their targets) -> their part of the loss, its derivatives (n,)."""


def target_logprobs(head: nn.Linear, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability of each target, and the entropy of its distribution in nats, without gradient: (M,) each.

    `hidden` (M, width), `targets` (M,) int64. The softmax is fp32 (fp64 where the model is), at `temperature`.
    """
    return _TargetLogprobs.apply(hidden, head.weight, head.bias, targets, temperature)


def logprobs_with_grad(
    head: nn.Linear,
    hidden: Tensor,
    targets: Tensor,
    temperature: float,
    logprob_grad: LogprobGrad,
    *,
    in_place: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of the chunks' losses and, without gradient, the results of `target_logprobs`.

    Applies `logprob_grad` to each chunk while its logits are in memory, so no logits are computed twice: a quarter less
    projection work than `target_logprobs`, which losses need that read whole rows. `in_place` adds the gradient of the
    head's weight to its `.grad` in the forward pass, where autograd would hold it two or three times; the loss itself
    must have gradient 1.
    """
    return _LogprobsWithGrad.apply(hidden, head.weight, head.bias, targets, temperature, logprob_grad, in_place)


def embedding_in_place(model: PreTrainedModel) -> AbstractContextManager[None]:
    """In this context the gradient of the model's embedding is added to its `.grad` token by token; autograd would
    allocate an array of the whole vocabulary in each backward pass. Embeddings with options are left to torch."""
    layer = model.get_input_embeddings()
    if type(layer) is not nn.Embedding or "forward" in layer.__dict__:
        return nullcontext()
    options = layer.max_norm or layer.scale_grad_by_freq or layer.sparse
    if options or not (layer.weight.is_leaf and layer.weight.requires_grad):
        return nullcontext()
    return replaced_forwards([(layer, partial(_embedded, layer))])


def _embedded(layer: nn.Embedding, tokens: Tensor) -> Tensor:
    return _Embedded.apply(layer.weight, tokens, layer.padding_idx)


class _Embedded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor, padding: int | None) -> Tensor:
        ctx.weight, ctx.padding = weight, padding  # not saved for backward, which only writes to its `.grad`
        ctx.save_for_backward(tokens)
        return F.embedding(tokens, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:  # type: ignore[override]
        [tokens], [grad_output] = ctx.saved_tensors, gradients
        updates = tokens.flatten(), grad_output.flatten(0, -2)
        if ctx.padding is not None:  # gets no gradient
            updates = tuple(part[tokens.flatten() != ctx.padding] for part in updates)
        _existing_grad(ctx.weight).index_add_(0, *updates)
        return None, None, None


def _existing_grad(weight: Tensor) -> Tensor:
    """The weight's `.grad`, which is set to zeros if it is None."""
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    return weight.grad


class _TargetLogprobs(torch.autograd.Function):
    """d log p(target) / d logits is one-hot minus softmax. The backward pass recomputes the softmax in chunks in one
    buffer, which costs less than writing and reading all of it."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropy, lse = (hidden.new_empty(len(targets), dtype=_precision(hidden)) for _ in range(3))
        for part, logits in _logits_in_chunks(hidden, weight, bias, temperature):
            logprobs[part], entropy[part], lse[part] = _softmax_figures(logits, targets[part])
        ctx.save_for_backward(hidden, weight, bias, targets, lse)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, lse = ctx.saved_tensors
        grads = _Gradients(hidden, weight, bias, *ctx.needs_input_grad[1:3])
        scale = gradients[0] / ctx.temperature  # (M,)
        for part, logits in _logits_in_chunks(hidden, weight, bias, ctx.temperature):
            grads.add(part, _logits_grad(logits, targets[part], lse[part], scale[part]))
        return grads.hidden, grads.weight, grads.bias, None, None


class _LogprobsWithGrad(torch.autograd.Function):
    """A loss whose derivative is known chunk by chunk; its gradients are computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        logprob_grad: LogprobGrad,
        in_place: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        logprobs, entropy = (hidden.new_empty(len(targets), dtype=_precision(hidden)) for _ in range(2))
        in_place = in_place and weight.is_leaf and ctx.needs_input_grad[1]
        grads = _Gradients(hidden, weight, bias, *ctx.needs_input_grad[1:3], in_place=in_place)
        loss = hidden.new_zeros((), dtype=_precision(hidden))
        for part, logits in _logits_in_chunks(hidden, weight, bias, temperature):
            logprobs[part], entropy[part], lse = _softmax_figures(logits, targets[part])
            share, logprob_grads = logprob_grad(part, logprobs[part])
            loss += share
            grads.add(part, _logits_grad(logits, targets[part], lse, logprob_grads / temperature))
        ctx.save_for_backward(grads.hidden, None if in_place else grads.weight, grads.bias)
        ctx.mark_non_differentiable(logprobs, entropy)
        return loss, logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        grads = [None if gradient is None else gradient.mul_(gradients[0]) for gradient in ctx.saved_tensors]
        return (*grads, None, None, None, None)


class _Gradients:
    """Gradients of the head's inputs (M, width), weight and bias, accumulated from those of the logits chunk by chunk;
    `weight` or `bias` is None unless needed."""

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        needs_weight: bool,
        needs_bias: bool,
        *,
        in_place: bool = False,
    ) -> None:
        self._inputs, self._head = hidden, weight
        self.hidden = torch.empty_like(hidden)
        self.weight = _existing_grad(weight) if in_place else torch.zeros_like(weight) if needs_weight else None
        self.bias = torch.zeros_like(bias) if needs_bias and bias is not None else None

    def add(self, part: slice, grad_logits: Tensor) -> None:
        grad_logits = grad_logits.to(self._head.dtype)
        self.hidden[part] = multiply(grad_logits, self._head.T)
        if self.weight is not None and MKL_IS_SLOW:
            for first in range(0, len(self._head), COLUMNS):  # parts that stay in the cache until they are added
                tokens = slice(first, first + COLUMNS)
                self.weight[tokens] += weight_gradient(grad_logits[:, tokens], self._inputs[part])
        elif self.weight is not None:
            self.weight.addmm_(grad_logits.T, self._inputs[part])
        if self.bias is not None:
            self.bias += grad_logits.sum(dim=0)


def _softmax_figures(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each row of logits (n, V): log-probability of its target, entropy, log-sum-exp; (n,) each."""
    if can_be_read(logits):
        figures = torch.empty(3, len(logits))
        _softmax_figures_rows(
            logits.numpy(), targets.numpy(), figures.numpy(), shared=logits.numel() >= MIN_PARALLEL_SIZE
        )
        return figures[0], figures[1], figures[2]
    largest = logits.amax(dim=-1, keepdim=True)  # (n, 1)
    shifted = logits - largest
    exponentials = shifted.exp()
    total = exponentials.sum(dim=-1)
    logprobs = shifted.gather(1, targets[:, None])[:, 0] - total.log()
    entropy = total.log() - shifted.mul_(exponentials).sum(dim=-1) / total
    return logprobs, entropy, total.log() + largest[:, 0]


def _logits_grad(logits: Tensor, targets: Tensor, lse: Tensor, scale: Tensor) -> Tensor:
    """The gradient of the logits (n, V), `scale` (n,) times (one-hot minus softmax), written over them."""
    if can_be_read(logits, lse, scale):
        arrays = (tensor.numpy(force=True) for tensor in (logits, targets, lse, scale.contiguous()))
        _logits_grad_rows(*arrays, shared=logits.numel() >= MIN_PARALLEL_SIZE)
        return logits
    softmax = logits.sub_(lse[:, None]).exp_()
    return softmax.mul_(-scale[:, None]).scatter_add_(1, targets[:, None], scale[:, None])


@compiled_in_parallel
def _softmax_figures_rows(logits, targets, figures):
    for row in prange(len(logits)):
        largest = greatest(logits[row])
        total, weighted = 0.0, 0.0
        for first in range(0, logits.shape[1], FP32_SUM_SIZE):
            part_total, part_weighted = _sums(logits[row, first : first + FP32_SUM_SIZE], largest)
            total += part_total
            weighted += part_weighted
        if np.isnan(weighted):  # the exponentials hide a NaN
            total = weighted
        figures[0, row] = logits[row, targets[row]] - largest - np.log(total)
        figures[1, row] = np.log(total) - weighted / total
        figures[2, row] = largest + np.log(total)


@compiled
def _sums(numbers, largest):
    """The sums of exp(x - largest) and of (x - largest) exp(x - largest)."""
    total, weighted = np.float32(0), np.float32(0)
    for at in range(len(numbers)):
        shifted = numbers[at] - largest
        power = power_of_two(shifted * LOG2_E)
        total += power
        weighted += power * shifted
    return total, weighted


@compiled_in_parallel
def _logits_grad_rows(logits, targets, lse, scale):
    for row in prange(len(logits)):
        _scale_softmax(logits[row], lse[row], -scale[row])
        logits[row, targets[row]] += scale[row]


@compiled
def _scale_softmax(numbers, lse, scale):
    for at in range(len(numbers)):
        numbers[at] = power_of_two((numbers[at] - lse) * LOG2_E) * scale


def _logits_in_chunks(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float
) -> Iterator[tuple[slice, Tensor]]:
    """Yields slices of the M rows with their logits (n, V), which the next chunk overwrites."""
    size = max(MIN_CHUNK_ROWS, CHUNK_LOGITS // len(weight))
    buffer = hidden.new_empty(min(size, len(hidden)), len(weight))
    for first in range(0, len(hidden), size):
        part = slice(first, min(first + size, len(hidden)))
        logits = multiply(hidden[part], weight, bias, space=buffer).to(_precision(hidden))
        yield part, logits if temperature == 1 else logits.div_(temperature)


def _precision(hidden: Tensor) -> torch.dtype:
    return torch.promote_types(hidden.dtype, torch.float32)
