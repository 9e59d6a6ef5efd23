"""The vocabulary at both ends of a model. The projection onto it is the widest array of a language model, made in
chunks and never held whole; its weight, which is often the embedding too, is the widest gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numba
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from sleuth.learn.compiled import LOG2_E, can_be_read, compiled, compiled_in_parallel, greatest, power_of_two
from sleuth.learn.products import COLUMNS, MKL_IS_SLOW, multiply, replaced_forwards, weight_gradient

LOGITS_AT_ONCE = 2**21
"""A chunk has so many logits (8 MB in fp32): they stay in the processor's last cache."""

LEAST_ROWS = 128
"""But it has so many rows at least: the weights are read once a chunk, and their gradient is written."""

LEAST_SHARED = 2**15
"""Elements. With fewer, a second thread takes longer to wake than it spares."""
SUMMED = 2**11
"""Elements whose sum is taken in fp32; such sums are added up in fp64."""

LogprobGrad = Callable[[slice, Tensor], tuple[Tensor, Tensor]]
"""(a stretch of the M rows, the log-probabilities (n,) of their targets) -> what they add to the loss, and its
derivative by each of them (n,)."""


def chosen_logprobs(head: nn.Linear, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability of each target, and the entropy of its distribution in nats, without gradient: (M,) each.

    `hidden` (M, width), `targets` (M,) int64. The softmax is fp32 (fp64 where the model is), at `temperature`.
    """
    return _ChosenLogprobs.apply(hidden, head.weight, head.bias, targets, temperature)


def logprobs_with_grad(
    head: nn.Linear,
    hidden: Tensor,
    targets: Tensor,
    temperature: float,
    logprob_grad: LogprobGrad,
    *,
    in_place: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss to which each chunk adds by itself, and, without gradient, what `chosen_logprobs` tells.

    What `logprob_grad` says of a chunk is turned into gradients while its logits are there, so that none is computed
    again: a quarter of the projection's work less than with `chosen_logprobs`, which serves losses that need all of a
    row first.
    `in_place` adds the gradient of the head's weight to its `.grad` right away, for a loss whose own gradient is 1:
    autograd would hold it two or three times.
    """
    return _LogprobsWithGrad.apply(hidden, head.weight, head.bias, targets, temperature, logprob_grad, in_place)


def embedding_in_place(model: PreTrainedModel) -> AbstractContextManager[None]:
    """While it lasts, the gradient of the model's embedding is added to its `.grad` token by token: autograd makes an
    array of the whole vocabulary for each backward pass. Embeddings with options of their own are left to torch."""
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
        ctx.weight, ctx.padding = weight, padding  # not saved: nothing of it is read but its place for gradients
        ctx.save_for_backward(tokens)
        return F.embedding(tokens, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:  # type: ignore[override]
        [tokens], [of_output] = ctx.saved_tensors, gradients
        learned = tokens.flatten(), of_output.flatten(0, -2)
        if ctx.padding is not None:  # learns nothing
            learned = tuple(part[tokens.flatten() != ctx.padding] for part in learned)
        _gradient_of(ctx.weight).index_add_(0, *learned)
        return None, None, None


def _gradient_of(weight: Tensor) -> Tensor:
    """Where its gradient adds up."""
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    return weight.grad


class _ChosenLogprobs(torch.autograd.Function):
    """d log p(target) / d logits is one-hot minus softmax. The backward pass computes the softmax again, chunk by chunk
    in the same piece of memory: that costs less than to write all of it and read it back."""

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
        found = _Gradients(hidden, weight, bias, *ctx.needs_input_grad[1:3])
        scale = gradients[0] / ctx.temperature  # (M,)
        for part, logits in _logits_in_chunks(hidden, weight, bias, ctx.temperature):
            found.add(part, _pull_back(logits, targets[part], lse[part], scale[part]))
        return found.of_hidden, found.of_weight, found.of_bias, None, None


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
        in_place: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        logprobs, entropy = (hidden.new_empty(len(targets), dtype=_precision(hidden)) for _ in range(2))
        in_place = in_place and weight.is_leaf and ctx.needs_input_grad[1]
        found = _Gradients(hidden, weight, bias, *ctx.needs_input_grad[1:3], in_place=in_place)
        loss = hidden.new_zeros((), dtype=_precision(hidden))
        for part, logits in _logits_in_chunks(hidden, weight, bias, temperature):
            logprobs[part], entropy[part], lse = _softmax_figures(logits, targets[part])
            share, derivative = logprob_grad(part, logprobs[part])
            loss += share
            found.add(part, _pull_back(logits, targets[part], lse, derivative / temperature))
        ctx.save_for_backward(found.of_hidden, None if in_place else found.of_weight, found.of_bias)
        ctx.mark_non_differentiable(logprobs, entropy)
        return loss, logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        found = [None if gradient is None else gradient.mul_(gradients[0]) for gradient in ctx.saved_tensors]
        return (*found, None, None, None, None)


class _Gradients:
    """Those of the projection's inputs (M, width), weight and bias, from those of the logits chunk by chunk; None where
    `of_weight` or `of_bias` is not wanted."""

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        of_weight: bool,
        of_bias: bool,
        *,
        in_place: bool = False,
    ) -> None:
        self.hidden, self.weight = hidden, weight
        self.of_hidden = torch.empty_like(hidden)
        self.of_weight = _gradient_of(weight) if in_place else torch.zeros_like(weight) if of_weight else None
        self.of_bias = torch.zeros_like(bias) if of_bias and bias is not None else None

    def add(self, part: slice, of_logits: Tensor) -> None:
        of_logits = of_logits.to(self.weight.dtype)
        self.of_hidden[part] = multiply(of_logits, self.weight.T)
        if self.of_weight is not None and MKL_IS_SLOW:
            for first in range(0, len(self.weight), COLUMNS):  # parts that stay in the cache until they are added
                tokens = slice(first, first + COLUMNS)
                self.of_weight[tokens] += weight_gradient(of_logits[:, tokens], self.hidden[part])
        elif self.of_weight is not None:
            self.of_weight.addmm_(of_logits.T, self.hidden[part])
        if self.of_bias is not None:
            self.of_bias += of_logits.sum(dim=0)


def _softmax_figures(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row of logits (n, V): log-probability of its target, entropy, log-sum-exp; (n,) each."""
    if can_be_read(logits):
        figures = torch.empty(3, len(logits))
        _read_rows(logits.numpy(), targets.numpy(), figures.numpy(), shared=logits.numel() >= LEAST_SHARED)
        return figures[0], figures[1], figures[2]
    largest = logits.amax(dim=-1, keepdim=True)  # (n, 1)
    shifted = logits - largest
    exponentials = shifted.exp()
    total = exponentials.sum(dim=-1)
    logprobs = shifted.gather(1, targets[:, None])[:, 0] - total.log()
    entropy = total.log() - shifted.mul_(exponentials).sum(dim=-1) / total
    return logprobs, entropy, total.log() + largest[:, 0]


def _pull_back(logits: Tensor, targets: Tensor, lse: Tensor, scale: Tensor) -> Tensor:
    """The gradient of the logits (n, V), written over them: `scale` (n,) times one-hot minus softmax."""
    if can_be_read(logits, lse, scale):
        arrays = (tensor.numpy(force=True) for tensor in (logits, targets, lse, scale.contiguous()))
        _pull_back_rows(*arrays, shared=logits.numel() >= LEAST_SHARED)
        return logits
    softmax = logits.sub_(lse[:, None]).exp_()
    return softmax.mul_(-scale[:, None]).scatter_add_(1, targets[:, None], scale[:, None])


@compiled_in_parallel
def _read_rows(logits, targets, figures):
    for row in numba.prange(len(logits)):
        largest = greatest(logits[row])
        total, along = 0.0, 0.0
        for first in range(0, logits.shape[1], SUMMED):
            of_part, along_part = _sums(logits[row, first : first + SUMMED], largest)
            total += of_part
            along += along_part
        if np.isnan(along):  # exponentials do not show one
            total = along
        figures[0, row] = logits[row, targets[row]] - largest - np.log(total)
        figures[1, row] = np.log(total) - along / total
        figures[2, row] = largest + np.log(total)


@compiled
def _sums(numbers, largest):
    """Of exp(x - largest), and of x - largest weighted by it."""
    total, along = np.float32(0), np.float32(0)
    for at in range(len(numbers)):
        shifted = numbers[at] - largest
        power = power_of_two(shifted * LOG2_E)
        total += power
        along += power * shifted
    return total, along


@compiled_in_parallel
def _pull_back_rows(logits, targets, lse, scale):
    for row in numba.prange(len(logits)):
        _scale_softmax(logits[row], lse[row], -scale[row])
        logits[row, targets[row]] += scale[row]


@compiled
def _scale_softmax(numbers, lse, scale):
    for at in range(len(numbers)):
        numbers[at] = power_of_two((numbers[at] - lse) * LOG2_E) * scale


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
