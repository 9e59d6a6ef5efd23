"""Norms by the root mean square (arXiv:1910.07467) in one pass over memory, of fp32 on a CPU; for the backward pass
nothing is kept but their inputs."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sleuth.learn.compiled import compiled, compiled_in_parallel

LEAST_SHARED = 2**17
"""Elements. With fewer, a second thread takes longer to wake than it spares."""
PART_SIZE, LEAST_ROWS = 2**14, 16
"""About how many elements a part has, and how many rows at least. A weight's gradient is added up part by part, so the
parts are the same for any number of threads."""


def rms_norm(inputs: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * weight, of each row x of `inputs` (..., n), with `weight` (n): (..., n)."""
    inputs = inputs.contiguous()
    if torch.is_grad_enabled() and (inputs.requires_grad or weight.requires_grad):
        return _RmsNorm.apply(inputs, weight, epsilon)
    return _normalised(inputs, weight, epsilon)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.epsilon = epsilon
        return _normalised(inputs, weight, epsilon)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        inputs, weight = ctx.saved_tensors
        of_inputs, of_weight, _ = ctx.needs_input_grad
        found = torch.empty_like(inputs if of_inputs else inputs[:0])
        rows, size = _rows(inputs), _part_size(inputs)
        sums = np.zeros((-(-len(rows) // size) if of_weight else 0, len(weight)), dtype=np.float32)
        arrays = rows, _copied(weight), _rows(gradients[0].contiguous()), _rows(found), sums
        _backward(*arrays, np.float32(ctx.epsilon), size, shared=rows.size >= LEAST_SHARED)
        return found if of_inputs else None, torch.from_numpy(sums.sum(axis=0)) if of_weight else None, None


def _normalised(inputs: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    output = torch.empty_like(inputs)
    rows, size = _rows(inputs), _part_size(inputs)
    _normalise(rows, _copied(weight), _rows(output), np.float32(epsilon), size, shared=rows.size >= LEAST_SHARED)
    return output


def _rows(tensor: Tensor) -> np.ndarray:
    """(..., n) -> (N, n)."""
    return tensor.numpy(force=True).reshape(-1, tensor.shape[-1])


def _copied(weight: Tensor) -> np.ndarray:
    """Memory that numpy has seen cannot be resized any more, and FSDP resizes that of weights."""
    return weight.detach().clone().numpy()


def _part_size(inputs: Tensor) -> int:
    """In rows."""
    return max(PART_SIZE // inputs.shape[-1], LEAST_ROWS)


@compiled_in_parallel
def _normalise(rows, weight, output, epsilon, size):
    for part in numba.prange((len(rows) + size - 1) // size):
        for row in range(part * size, min((part + 1) * size, len(rows))):
            scale = _scale(rows[row], epsilon)
            for at in range(len(weight)):
                output[row, at] = rows[row, at] * scale * weight[at]


@compiled_in_parallel
def _backward(rows, weight, gradients, found, sums, epsilon, size):
    """From `gradients` (N, n) of the outputs, those of the inputs to `found` (N, n), and that of the weight to `sums`,
    part by part (parts, n); of the two, what has no rows is not wanted.

    With r = 1 / sqrt(mean(x^2) + epsilon): d / d weight = g x r, d / dx = r (g w - x r^2 mean(g w x)).
    """
    for part in numba.prange((len(rows) + size - 1) // size):
        for row in range(part * size, min((part + 1) * size, len(rows))):
            scale = _scale(rows[row], epsilon)
            if len(sums) > 0:
                for at in range(len(weight)):
                    sums[part, at] += gradients[row, at] * rows[row, at] * scale
            if len(found) > 0:
                along = np.float32(0)
                for at in range(len(weight)):
                    along += gradients[row, at] * weight[at] * rows[row, at]
                along *= scale * scale / np.float32(len(weight))
                for at in range(len(weight)):
                    found[row, at] = scale * (gradients[row, at] * weight[at] - rows[row, at] * along)


@compiled
def _scale(row, epsilon):
    total = np.float32(0)
    for at in range(len(row)):
        total += row[at] * row[at]
    return np.float32(1) / np.sqrt(total / np.float32(len(row)) + epsilon)
