"""The softmax of logits over a vocabulary, one chunk of rows at a time: `Logits`, and the functions behind it, which
are fused on a card, compiled loops for fp32 on a CPU, else plain torch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from sleuth.kernels.card_pass import PIECE_LOGITS
from sleuth.kernels.compiled import LOG2_E, can_be_read, compiled, compiled_in_parallel, greatest, power_of_two, prange
from sleuth.kernels.fused import Fused, is_on, on_card
from sleuth.kernels.lean_layers import precision_of
from sleuth.kernels.matmul import multiply

MIN_PARALLEL_SIZE = 2**15
"""With fewer elements, waking a second thread costs more than it saves."""
FP32_SUM_SIZE = 2**11
"""Elements summed in fp32; these partial sums are added in fp64."""

Figures = tuple[Tensor, Tensor, Tensor]
"""For each row: log-probability of its target, entropy, log-sum-exp; (n,) each."""


def logits_in_chunks(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, size: int
) -> Iterator[tuple[slice, Logits]]:
    """Yields slices of at most `size` of the M rows of `hidden` with their logits, which the next chunk overwrites."""
    buffer = hidden.new_empty(min(size, len(hidden)), len(weight))
    for first in range(0, len(hidden), size):
        part = slice(first, min(first + size, len(hidden)))
        yield part, Logits(multiply(hidden[part], weight, bias, space=buffer), temperature)


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
