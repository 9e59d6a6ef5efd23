"""Log-probabilities over the vocabulary, and embedding gradients, without the largest arrays of a language model.

Logits are computed in chunks and never stored for all rows; gradients of the head and the embedding can be added to
`.grad` in place. The functions of a chunk (`Logits`) are fused on a card, compiled loops for fp32 on a CPU, else plain
torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from sleuth.kernels.card_pass import CARD_CHUNK_ROWS, PIECE_LOGITS
from sleuth.kernels.compiled import LOG2_E, can_be_read, compiled, compiled_in_parallel, greatest, power_of_two, prange
from sleuth.kernels.fused import Fused, is_on, on_card
from sleuth.kernels.matmul import COLUMNS, MKL_IS_SLOW, multiply, precision_of, replaced_forwards, weight_gradient

CHUNK_LOGITS = 2**21
"""Logits of a chunk on a CPU (8 MB in fp32), which fit the last-level cache."""
MIN_CHUNK_ROWS = 128
"""Minimum rows of a chunk on a CPU, since each chunk reads the weights and writes their gradient once."""
SUMMED_WORDS = 2**14
"""Rows of the head whose gradient is computed at once before it is added in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunking:
    """Rows per chunk, and whether the gradient of a 16-bit head is summed over the chunks in fp32.

    A sum in bf16 loses what is smaller than 1/256 of it: over the 128 chunks of 16,384 rows a relative error of 1 %.
    """

    rows: int
    sums_in_fp32: bool


def chunking_for(device: torch.device, words: int) -> Chunking:
    """The chunking for a vocabulary of `words` on a device."""
    if device.type == "cpu":
        return Chunking(rows=max(MIN_CHUNK_ROWS, CHUNK_LOGITS // words), sums_in_fp32=False)
    return Chunking(rows=CARD_CHUNK_ROWS, sums_in_fp32=True)


Head = nn.Linear | nn.Identity
"""The projection of hidden states (M, width) onto the vocabulary; the identity where they are the logits (M, V)."""

LogprobGrad = Callable[[slice, Tensor], tuple[Tensor, Tensor]]
"""(slice of the M rows, log-probabilities (n,) of their targets) -> their part of the loss, its derivatives (n,). Where
k more tokens are asked for in each row, both are (n, 1 + k), the target first."""


def target_logprobs(
    head: Head, hidden: Tensor, targets: Tensor, temperature: float, *, chunking: Chunking | None = None
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target, and the entropy of its distribution in nats, without gradient: (M,) each.

    `hidden` (M, width), `targets` (M,) int64. The softmax is fp32 (fp64 where the model is), at `temperature`.
    `chunking` replaces that of the device.
    """
    weight, bias, words = _parts_of(head, hidden)
    return _TargetLogprobs.apply(
        hidden, weight, bias, targets, temperature, chunking or chunking_for(hidden.device, words)
    )


def logprobs_with_grad(
    head: Head,
    hidden: Tensor,
    targets: Tensor,
    temperature: float,
    logprob_grad: LogprobGrad,
    *,
    also: Tensor | None = None,
    in_place: bool = False,
    chunking: Chunking | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of the chunks' losses and, without gradient, the results of `target_logprobs`.

    `also` (M, k) int64 are further tokens on whose log-probabilities the loss depends.

    Applies `logprob_grad` to each chunk while its logits are in memory, so no logits are computed twice: a quarter less
    projection work than `target_logprobs`, which losses need that read whole rows. `in_place` adds the gradient of the
    head's weight to its `.grad` in the forward pass, where autograd would hold it two or three times; the loss itself
    must have gradient 1. `chunking` replaces that of the device.
    """
    weight, bias, words = _parts_of(head, hidden)
    chunking = chunking or chunking_for(hidden.device, words)
    return _LogprobsWithGrad.apply(hidden, weight, bias, targets, temperature, logprob_grad, also, in_place, chunking)


def _parts_of(head: Head, hidden: Tensor) -> tuple[Tensor | None, Tensor | None, int]:
    """Weight and bias of the head, if it has any, and the words of the vocabulary."""
    if isinstance(head, nn.Identity):
        return None, None, hidden.shape[1]
    return head.weight, head.bias, len(head.weight)


@torch.no_grad()
def top_logprobs(
    head: Head, hidden: Tensor, targets: Tensor, temperature: float, top_k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability of each target (M,), the likeliest tokens in its place and theirs: (M, top_k) each, likeliest
    first; otherwise as `target_logprobs`."""
    logprobs = hidden.new_empty(len(targets), dtype=precision_of(hidden))
    tokens, of_tokens = targets.new_empty(len(targets), top_k), logprobs.new_empty(len(targets), top_k)
    weight, bias, words = _parts_of(head, hidden)
    for part, logits in logits_in_chunks(hidden, weight, bias, temperature, chunking_for(hidden.device, words).rows):
        logprobs[part], _, lse = logits.figures(targets[part])
        tokens[part], largest = logits.largest(top_k)
        of_tokens[part] = largest - lse[:, None]
    return logprobs, tokens, of_tokens


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
        ctx: Any,
        hidden: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        chunking: Chunking,
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropy, lse = (hidden.new_empty(len(targets), dtype=precision_of(hidden)) for _ in range(3))
        for part, logits in logits_in_chunks(hidden, weight, bias, temperature, chunking.rows):
            logprobs[part], entropy[part], lse[part] = logits.figures(targets[part])
        ctx.save_for_backward(hidden, weight, bias, targets, lse)
        ctx.temperature, ctx.chunking = temperature, chunking
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, lse = ctx.saved_tensors
        grads = _Gradients(hidden, weight, bias, *ctx.needs_input_grad[1:3], in_fp32=ctx.chunking.sums_in_fp32)
        scale = gradients[0] / ctx.temperature  # (M,)
        for part, logits in logits_in_chunks(hidden, weight, bias, ctx.temperature, ctx.chunking.rows):
            grads.add(part, logits.gradient(targets[part], lse[part], scale[part]))
        return grads.hidden, grads.weight, grads.bias, None, None, None


class _LogprobsWithGrad(torch.autograd.Function):
    """A loss whose derivative is known chunk by chunk; its gradients are computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        logprob_grad: LogprobGrad,
        also: Tensor | None,
        in_place: bool,
        chunking: Chunking,
    ) -> tuple[Tensor, Tensor, Tensor]:
        logprobs, entropy = (hidden.new_empty(len(targets), dtype=precision_of(hidden)) for _ in range(2))
        in_place = in_place and weight is not None and weight.is_leaf and ctx.needs_input_grad[1]
        needed = ctx.needs_input_grad[1:3]
        grads = _Gradients(hidden, weight, bias, *needed, in_place=in_place, in_fp32=chunking.sums_in_fp32)
        loss = hidden.new_zeros((), dtype=precision_of(hidden))
        for part, logits in logits_in_chunks(hidden, weight, bias, temperature, chunking.rows):
            logprobs[part], entropy[part], lse = logits.figures(targets[part])
            values, more = logprobs[part], None
            if also is not None:
                more = also[part]
                values = torch.cat([values[:, None], logits.at(more) - lse[:, None]], dim=1)  # (n, 1 + k)
            share, logprob_grads = logprob_grad(part, values)
            loss += share
            grads.add(part, logits.gradient(targets[part], lse, logprob_grads / temperature, more))
        ctx.save_for_backward(grads.hidden, None if in_place else grads.weight, grads.bias)
        ctx.mark_non_differentiable(logprobs, entropy)
        return loss, logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        grads = [None if gradient is None else gradient.mul_(gradients[0]) for gradient in ctx.saved_tensors]
        return (*grads, None, None, None, None, None, None)


class _Gradients:
    """Gradients of the head's inputs (M, width), weight and bias, accumulated from those of the logits chunk by chunk;
    `weight` or `bias` is None unless needed. `in_fp32` sums the gradient of a 16-bit weight in fp32, unless it is added
    `in_place`."""

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        needs_weight: bool,
        needs_bias: bool,
        *,
        in_place: bool = False,
        in_fp32: bool = False,
    ) -> None:
        self._inputs, self._head = hidden, weight
        self.hidden = torch.empty_like(hidden)
        self._sum: Tensor | None = None
        if weight is not None and in_place:
            self._sum = _existing_grad(weight)
        elif weight is not None and needs_weight:
            self._sum = torch.zeros_like(weight, dtype=precision_of(weight) if in_fp32 else None)
        self.bias = torch.zeros_like(bias) if needs_bias and bias is not None else None

    @property
    def weight(self) -> Tensor | None:
        """The sum, in the weight's dtype."""
        return None if self._sum is None else self._sum.to(self._inputs.dtype)

    def add(self, part: slice, grad_logits: Tensor) -> None:
        grad_logits = grad_logits.to(self._inputs.dtype)
        self.hidden[part] = grad_logits if self._head is None else multiply(grad_logits, self._head.T)
        if self._sum is not None:
            self._add_weight(self._sum, grad_logits, self._inputs[part])
        if self.bias is not None:
            self.bias += grad_logits.sum(dim=0)

    def _add_weight(self, total: Tensor, grad_logits: Tensor, inputs: Tensor) -> None:
        if total.dtype != inputs.dtype and inputs.device.type == "cuda" and adds_in_fp32(inputs.device):
            torch.addmm(total, grad_logits.T, inputs, out_dtype=total.dtype, out=total)
            return
        if total.dtype != inputs.dtype:
            step, product = SUMMED_WORDS, _weight_gradient_in_fp32
        elif MKL_IS_SLOW:
            step, product = COLUMNS, weight_gradient  # parts that stay in the cache until they are added
        else:
            total.addmm_(grad_logits.T, inputs)
            return
        for first in range(0, len(total), step):
            words = slice(first, first + step)
            total[words] += product(grad_logits[:, words], inputs)


@cache
def adds_in_fp32(device: torch.device) -> bool:
    """Whether a card adds a product of 16-bit factors to a sum in fp32, in place; older versions of torch refuse."""
    total, ones = (torch.ones(16, 16, device=device, dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    try:
        torch.addmm(total, ones, ones, out_dtype=total.dtype, out=total)
    except (RuntimeError, TypeError):
        return False
    return bool((total == 17).all())


def _weight_gradient_in_fp32(gradients: Tensor, inputs: Tensor) -> Tensor:
    """`weight_gradient` of 16-bit factors, not rounded to 16 bits."""
    if inputs.device.type == "cuda":
        return torch.mm(gradients.T, inputs, out_dtype=torch.float32)
    return gradients.T.float() @ inputs.float()


MIN_PARALLEL_SIZE = 2**15
"""With fewer elements, waking a second thread costs more than it saves."""
FP32_SUM_SIZE = 2**11
"""Elements summed in fp32; these partial sums are added in fp64."""

Figures = tuple[Tensor, Tensor, Tensor]
"""For each row: log-probability of its target, entropy, log-sum-exp; (n,) each."""


def logits_in_chunks(
    hidden: Tensor, weight: Tensor | None, bias: Tensor | None, temperature: float, size: int
) -> Iterator[tuple[slice, Logits]]:
    """Yields slices of at most `size` of the M rows of `hidden` with their logits, which the next chunk overwrites."""
    buffer = None if weight is None else hidden.new_empty(min(size, len(hidden)), len(weight))
    for first in range(0, len(hidden), size):
        part = slice(first, min(first + size, len(hidden)))
        product = hidden[part].clone() if weight is None else multiply(hidden[part], weight, bias, space=buffer)
        yield part, Logits(product, temperature)


class Logits:
    """The logits (n, V) of a chunk at a temperature, in fp32 (fp64 where the model is); `product` is overwritten.

    Fused functions read a product of 16 bits itself. Others read a copy in fp32: of pieces of `PIECE_LOGITS`, each time
    that they are read, if there are several.
    """

    def __init__(self, product: Tensor, temperature: float) -> None:
        self._values, self._temperature = product, temperature
        self._precision = precision_of(product)
        self._rows = max(1, PIECE_LOGITS // product.shape[1])
        self._inverse: Tensor | None = None
        self._is_exact = False
        if is_on() and on_card(product) and len(product) > 1:  # one row would be a graph of its own
            self._inverse = torch.full((), 1 / temperature, dtype=self._precision, device=product.device)
        elif product.dtype == self._precision or len(product) <= self._rows:
            self._values, self._is_exact = self._exact(product), True

    def figures(self, targets: Tensor) -> Figures:
        """Those of `targets` (n)."""
        if self._inverse is not None:
            return fused_figures(self._values, targets, inverse_temperature=self._inverse)
        parts = [
            compiled_figures(piece, targets[rows]) if can_be_read(piece) else plain_figures(piece, targets[rows])
            for rows, piece in self._pieces()
        ]
        logprobs, entropy, lse = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
        return logprobs, entropy, lse

    def at(self, tokens: Tensor) -> Tensor:
        """The logits (n, k) of k tokens in each row."""
        return self._exact(self._values.gather(1, tokens))

    def largest(self, number: int) -> tuple[Tensor, Tensor]:
        """The tokens with the largest logits in each row, and these: (n, number) each."""
        largest = self._values.topk(number, dim=1)
        return largest.indices, self._exact(largest.values)

    def gradient(self, targets: Tensor, lse: Tensor, scale: Tensor, more: Tensor | None = None) -> Tensor:
        """The gradient of the logits, `scale` (n,) times (one-hot minus softmax), written over them. With k `more`
        tokens (n, k) in each row, `scale` is (n, 1 + k) and the gradient the sum over all of them."""
        if self._inverse is not None and more is None:
            write_logits_grad(self._values, targets, lse, scale, inverse_temperature=self._inverse)
            return self._values
        of_target = scale if more is None else scale.sum(dim=1)
        for rows, piece in self._pieces():
            grad = compiled_grad if can_be_read(piece, lse, of_target) else plain_grad
            gradient = grad(piece, targets[rows], lse[rows], of_target[rows])
            if more is not None:  # what the target got belongs to the others
                others = scale[rows, 1:]
                gradient.scatter_add_(1, targets[rows, None], -others.sum(dim=1, keepdim=True))
                gradient.scatter_add_(1, more[rows], others)
            if not self._is_exact:
                self._values[rows] = gradient
        return self._values

    def _pieces(self) -> Iterator[tuple[slice, Tensor]]:
        for first in range(0, len(self._values), self._rows):
            rows = slice(first, first + self._rows)
            yield rows, self._exact(self._values[rows])

    def _exact(self, logits: Tensor) -> Tensor:
        """Values at the temperature, in the precision of the softmax."""
        if self._is_exact:
            return logits
        if self._inverse is not None:
            return logits.to(self._precision, copy=True).mul_(self._inverse)
        logits = logits.to(self._precision)
        return logits if self._temperature == 1 else logits.div_(self._temperature)


def plain_figures(logits: Tensor, targets: Tensor, *, inverse_temperature: Tensor | None = None) -> Figures:
    """The softmax of logits (n, V), over a temperature unless they are at it; computed in fp32 from their own dtype."""

    def exact(values: Tensor) -> Tensor:
        return values if inverse_temperature is None else values.to(precision_of(logits)) * inverse_temperature

    shifted = exact(logits)
    largest = shifted.amax(dim=-1, keepdim=True)  # (n, 1)
    shifted = shifted - largest
    exponentials = shifted.exp()
    total = exponentials.sum(dim=-1)
    at_target = exact(logits.gather(1, targets[:, None])[:, 0])
    entropy = total.log() - shifted.mul_(exponentials).sum(dim=-1) / total
    return at_target - largest[:, 0] - total.log(), entropy, total.log() + largest[:, 0]


fused_figures = Fused(plain_figures)


def plain_grad(logits: Tensor, targets: Tensor, lse: Tensor, scale: Tensor) -> Tensor:
    """The gradient of logits (n, V), `scale` (n,) times (one-hot minus softmax), written over them."""
    softmax = logits.sub_(lse[:, None]).exp_()
    return softmax.mul_(-scale[:, None]).scatter_add_(1, targets[:, None], scale[:, None])


@Fused
def write_logits_grad(
    logits: Tensor, targets: Tensor, lse: Tensor, scale: Tensor, *, inverse_temperature: Tensor
) -> None:
    """As `plain_grad`, of logits in their own dtype and over a temperature."""
    exact = logits.to(precision_of(logits)) * inverse_temperature
    softmax = (exact - lse[:, None]).exp()
    words = torch.arange(logits.shape[1], device=logits.device)
    one_hot = (words[None] == targets[:, None]).to(softmax.dtype)
    logits.copy_((one_hot - softmax) * scale[:, None])


def compiled_figures(logits: Tensor, targets: Tensor) -> Figures:
    """As `plain_figures`, for fp32 on a CPU."""
    figures = torch.empty(3, len(logits))
    _figures_of_rows(logits.numpy(), targets.numpy(), figures.numpy(), shared=logits.numel() >= MIN_PARALLEL_SIZE)
    return figures[0], figures[1], figures[2]


def compiled_grad(logits: Tensor, targets: Tensor, lse: Tensor, scale: Tensor) -> Tensor:
    """As `plain_grad`, for fp32 on a CPU."""
    arrays = (tensor.numpy(force=True) for tensor in (logits, targets, lse, scale.contiguous()))
    _grad_of_rows(*arrays, shared=logits.numel() >= MIN_PARALLEL_SIZE)
    return logits


@compiled_in_parallel
def _figures_of_rows(logits, targets, figures):
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
def _grad_of_rows(logits, targets, lse, scale):
    for row in prange(len(logits)):
        _scale_softmax(logits[row], lse[row], -scale[row])
        logits[row, targets[row]] += scale[row]


@compiled
def _scale_softmax(numbers, lse, scale):
    for at in range(len(numbers)):
        numbers[at] = power_of_two((numbers[at] - lse) * LOG2_E) * scale
