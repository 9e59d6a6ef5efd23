"""The gate of a feed-forward block (SwiGLU, arXiv:2002.05202) in one pass over memory, of fp32 on a CPU; for the
backward pass nothing is kept but the two factors."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sleuth.learn.compiled import LOG2_E, compiled, compiled_in_parallel, power_of_two

LEAST_SHARED = 2**15
"""Elements. With fewer, a second thread takes longer to wake than it spares."""
PART_SIZE = 2**13
"""Elements of a part, of which a thread takes one after the other."""


def swish_product(gate: Tensor, up: Tensor) -> Tensor:
    """gate / (1 + exp(-gate)) * up, both of one shape, whatever it is."""
    gate, up = gate.contiguous(), up.contiguous()
    if torch.is_grad_enabled() and (gate.requires_grad or up.requires_grad):
        return _SwishProduct.apply(gate, up)
    return _product(gate, up)


class _SwishProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return _product(gate, up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        gate, up = ctx.saved_tensors
        of_gate, of_up = torch.empty_like(gate), torch.empty_like(up)
        lines = (_line(tensor) for tensor in (gate, up, gradients[0].contiguous(), of_gate, of_up))
        _backward(*lines, PART_SIZE, shared=gate.numel() >= LEAST_SHARED)
        return tuple(
            found if needed else None for found, needed in zip((of_gate, of_up), ctx.needs_input_grad, strict=True)
        )


def _product(gate: Tensor, up: Tensor) -> Tensor:
    output = torch.empty_like(gate)
    _multiply(_line(gate), _line(up), _line(output), PART_SIZE, shared=gate.numel() >= LEAST_SHARED)
    return output


def _line(tensor: Tensor) -> np.ndarray:
    return tensor.numpy(force=True).reshape(-1)


@compiled_in_parallel
def _multiply(gate, up, output, size):
    for part in numba.prange((len(gate) + size - 1) // size):
        begin, end = part * size, (part + 1) * size
        _multiply_part(gate[begin:end], up[begin:end], output[begin:end])


@compiled
def _multiply_part(gate, up, output):
    """A function of its own: within the shared loop, numba does not turn this one into vectors."""
    for at in range(len(gate)):
        passed, _ = _shares(gate[at])
        output[at] = gate[at] * passed * up[at]


@compiled_in_parallel
def _backward(gate, up, gradients, of_gate, of_up, size):
    for part in numba.prange((len(gate) + size - 1) // size):
        begin, end = part * size, (part + 1) * size
        _backward_part(gate[begin:end], up[begin:end], gradients[begin:end], of_gate[begin:end], of_up[begin:end])


@compiled
def _backward_part(gate, up, gradients, of_gate, of_up):
    """d silu(x) / dx = s (1 + x (1 - s)) with s = 1 / (1 + exp(-x))."""
    for at in range(len(gate)):
        passed, held = _shares(gate[at])
        of_gate[at] = gradients[at] * up[at] * passed * (np.float32(1) + gate[at] * held)
        of_up[at] = gradients[at] * gate[at] * passed


@compiled
def _shares(gate):
    """1 / (1 + exp(-gate)), and what that leaves of 1: neither is a difference."""
    power = power_of_two(-abs(gate) * LOG2_E)
    larger = np.float32(1) / (np.float32(1) + power)
    smaller = power * larger
    return (larger, smaller) if gate >= np.float32(0) else (smaller, larger)
