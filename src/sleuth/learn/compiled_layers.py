"""Which modules of a model compute the same by our compiled loops, in fewer passes over memory than torch takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.activations import SiLUActivation
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP, Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm

from sleuth.learn.compiled import LOG2_E, can_be_read, compiled, compiled_in_parallel, power_of_two

NORMS = (LlamaRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm)
"""Multiply by their weight. Those of other families (Gemma's by 1 + weight) have the same parts and differ."""
GATED = (LlamaMLP, Qwen2MLP, Qwen3MLP)
SILU = (SiLUActivation, nn.SiLU)


def compiled_forwards(model: nn.Module) -> list[tuple[nn.Module, Callable[[Tensor], Tensor]]]:
    """Norms and gated feed-forward blocks, with what to compute in their stead, for `replaced_forwards`.

    What the loops cannot read (other types than fp32, other devices than a CPU, shards) is computed as before. Modules
    whose forward was replaced already are left out.
    """
    forwards: list[tuple[nn.Module, Callable[[Tensor], Tensor]]] = []
    for module in model.modules():
        if "forward" in module.__dict__:
            continue
        if type(module) in NORMS:
            forwards.append((module, partial(_normalised, module)))
        elif type(module) in GATED and type(module.act_fn) in SILU:
            forwards.append((module, partial(_fed_forward, module)))
    return forwards


def _normalised(norm: Any, inputs: Tensor) -> Tensor:
    if can_be_read(inputs, norm.weight):
        return rms_norm(inputs, norm.weight, norm.variance_epsilon)
    return type(norm).forward(norm, inputs)


def _fed_forward(block: Any, inputs: Tensor) -> Tensor:
    gate, up = block.gate_proj(inputs), block.up_proj(inputs)
    if can_be_read(gate, up):
        return block.down_proj(swish_product(gate, up))
    return block.down_proj(block.act_fn(gate) * up)


LEAST_SHARED_GATE = 2**15
"""Elements. With fewer, a second thread takes longer to wake than it spares."""
GATE_PART_SIZE = 2**13
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
        _gate_backward(*lines, GATE_PART_SIZE, shared=gate.numel() >= LEAST_SHARED_GATE)
        return tuple(
            found if needed else None for found, needed in zip((of_gate, of_up), ctx.needs_input_grad, strict=True)
        )


def _product(gate: Tensor, up: Tensor) -> Tensor:
    output = torch.empty_like(gate)
    _multiply(_line(gate), _line(up), _line(output), GATE_PART_SIZE, shared=gate.numel() >= LEAST_SHARED_GATE)
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
def _gate_backward(gate, up, gradients, of_gate, of_up, size):
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


LEAST_SHARED_NORM = 2**17
"""Elements. With fewer, a second thread takes longer to wake than it spares."""
NORM_PART_SIZE, LEAST_ROWS = 2**14, 16
"""About how many elements a part has, and how many rows at least. A weight's gradient is added up part by part, so the
parts are the same for any number of threads."""


def rms_norm(inputs: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * weight, of each row x of `inputs` (..., n), with `weight` (n): (..., n)."""
    inputs = inputs.contiguous()
    if torch.is_grad_enabled() and (inputs.requires_grad or weight.requires_grad):
        return _RmsNorm.apply(inputs, weight, epsilon)
    return _rms_normalised(inputs, weight, epsilon)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.epsilon = epsilon
        return _rms_normalised(inputs, weight, epsilon)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        inputs, weight = ctx.saved_tensors
        of_inputs, of_weight, _ = ctx.needs_input_grad
        found = torch.empty_like(inputs if of_inputs else inputs[:0])
        rows, size = _rows(inputs), _part_size(inputs)
        sums = np.zeros((-(-len(rows) // size) if of_weight else 0, len(weight)), dtype=np.float32)
        arrays = rows, _copied(weight), _rows(gradients[0].contiguous()), _rows(found), sums
        _norm_backward(*arrays, np.float32(ctx.epsilon), size, shared=rows.size >= LEAST_SHARED_NORM)
        return found if of_inputs else None, torch.from_numpy(sums.sum(axis=0)) if of_weight else None, None


def _rms_normalised(inputs: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    output = torch.empty_like(inputs)
    rows, size = _rows(inputs), _part_size(inputs)
    _normalise(rows, _copied(weight), _rows(output), np.float32(epsilon), size, shared=rows.size >= LEAST_SHARED_NORM)
    return output


def _rows(tensor: Tensor) -> np.ndarray:
    """(..., n) -> (N, n)."""
    return tensor.numpy(force=True).reshape(-1, tensor.shape[-1])


def _copied(weight: Tensor) -> np.ndarray:
    """Memory that numpy has seen cannot be resized any more, and FSDP resizes that of weights."""
    return weight.detach().clone().numpy()


def _part_size(inputs: Tensor) -> int:
    """In rows."""
    return max(NORM_PART_SIZE // inputs.shape[-1], LEAST_ROWS)


@compiled_in_parallel
def _normalise(rows, weight, output, epsilon, size):
    for part in numba.prange((len(rows) + size - 1) // size):
        for row in range(part * size, min((part + 1) * size, len(rows))):
            scale = _scale(rows[row], epsilon)
            for at in range(len(weight)):
                output[row, at] = rows[row, at] * scale * weight[at]


@compiled_in_parallel
def _norm_backward(rows, weight, gradients, found, sums, epsilon, size):
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
