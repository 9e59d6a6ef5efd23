"""Products with the weights of linear layers on a CPU, by oneDNN instead of the BLAS that torch takes for fp32.

The numbers are the same but for rounding. On the processors that were measured oneDNN multiplies many rows by a weight,
or by its transpose, in 0.6 to 0.9 of the time. The gradient of a weight is faster only where `MKL_IS_SLOW`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sleuth.kernels.compiled import can_be_read

binding: Any
try:
    from llvmlite import binding  # which numba brings
except ImportError:
    binding = None

COLUMNS = 2**12
"""Of a product that is made in parts: with 128 rows 2 MB, which stay in the cache until they are copied."""

HAS_ONEDNN = torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")

MKL_IS_SLOW = (
    HAS_ONEDNN
    and binding is not None
    and torch.backends.cpu.get_cpu_capability() == "AVX512"
    and binding.get_host_cpu_name().startswith("znver")
)
"""On AMD's processors with AVX-512, which MKL leaves unused: it reaches less than half of oneDNN's rate. Chosen by the
processor and not by a measurement, so that results are the same bytes whatever else the machine does."""

LEAST_WORK = 2**25 if MKL_IS_SLOW else 2**27
"""Multiplications of a product. oneDNN builds code for each number of rows that it has not seen, in a millisecond:
with fewer, that is not earned back by the layers that share it."""


def precision_of(tensor: Tensor) -> torch.dtype:
    """The dtype in which numbers are computed: fp32 for 16 bits."""
    return torch.promote_types(tensor.dtype, torch.float32)


def multiply(inputs: Tensor, weight: Tensor, bias: Tensor | None = None, *, space: Tensor | None = None) -> Tensor:
    """`inputs` (..., n) by `weight` (m, n), of any strides, plus `bias` (m): (..., m). No gradient is kept.

    `space` (N, m) is overwritten with the result for two-dimensional inputs of at most N rows. oneDNN allocates its own
    output, which is slow if it is large: such a product is computed in parts that are copied into `space`.
    """
    if _is_worth_it(inputs, weight):
        if space is None or len(weight) <= COLUMNS:
            return by_onednn(inputs, weight, bias)
        output = space[: len(inputs)]
        for first in range(0, len(weight), COLUMNS):
            part = slice(first, first + COLUMNS)
            output[:, part] = by_onednn(inputs, weight[part], None if bias is None else bias[part])
        return output
    if space is None:
        return F.linear(inputs, weight, bias)
    output = torch.mm(inputs, weight.T, out=space[: len(inputs)])
    return output if bias is None else output.add_(bias)


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`multiply`, with gradients."""
    if not _is_worth_it(inputs, weight):
        return F.linear(inputs, weight, bias)
    return _Linear.apply(inputs, weight, bias)


def weight_gradient(gradients: Tensor, inputs: Tensor) -> Tensor:
    """`gradients` (N, m), transposed, by `inputs` (N, n): (m, n), of any strides."""
    if not (MKL_IS_SLOW and gradients.numel() * inputs.shape[1] >= LEAST_WORK and can_be_read(gradients, inputs)):
        return gradients.T @ inputs
    # oneDNN copies its first operand transposed, so that is the narrower one. With a second one whose rows do not lie
    # end to end it would take a thousand times as long.
    if inputs.shape[1] < gradients.shape[1] and gradients.is_contiguous():
        return by_onednn(inputs.T, gradients.T).T
    return by_onednn(gradients.T, inputs.contiguous().T)


def by_onednn(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`multiply`, unconditionally. `weight` may be packed."""
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")


@contextmanager
def onednn_linears(model: nn.Module) -> Iterator[None]:
    """In this context the linear layers of `model` use `linear`."""
    layers = [layer for layer in model.modules() if type(layer) is nn.Linear and "forward" not in layer.__dict__]
    with replaced_forwards((layer, partial(_forward, layer)) for layer in layers if HAS_ONEDNN):
        yield


@contextmanager
def replaced_forwards(forwards: Iterable[tuple[nn.Module, Callable[..., Tensor]]]) -> Iterator[None]:
    """In this context each module uses the given function as its `forward`."""
    replaced: list[nn.Module] = []
    try:
        for module, forward in forwards:
            module.__dict__["forward"] = forward
            replaced.append(module)
        yield
    finally:
        for module in replaced:
            del module.__dict__["forward"]


@torch.inference_mode(False)  # else the learner could not compute gradients of them
def joined(weights: Sequence[nn.Parameter]) -> Tensor:
    """The weights, which have a last dimension in common, one after another. They become views of it."""
    first, count = weights[0].detach(), sum(map(len, weights))
    storage, place = first.untyped_storage()._cdata, first.storage_offset()
    for weight in weights:
        if (weight.untyped_storage()._cdata, weight.storage_offset()) != (storage, place):
            break
        place += weight.numel()
    else:
        return first.as_strided((count, *first.shape[1:]), first.stride())
    buffer = torch.cat([weight.detach() for weight in weights])
    for weight, part in zip(weights, buffer.split([*map(len, weights)]), strict=True):
        weight.data = part
    return buffer


class JoinedProduct(torch.autograd.Function):
    """Inputs (N, n) by weights (m, n) that have become parts of one buffer: all products (N, sum of m) as one, and one
    each for their gradients."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, *weights: nn.Parameter) -> Tensor:
        ctx.save_for_backward(inputs, *weights)
        return inputs @ joined(weights).T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        [gradient], [inputs, *weights] = gradients, ctx.saved_tensors
        of_inputs, *of_weights = ctx.needs_input_grad
        whole = gradient.T @ inputs if any(of_weights) else None
        parts = [None] * len(weights) if whole is None else whole.split([*map(len, weights)])
        return gradient @ joined(weights) if of_inputs else None, *parts


def can_be_joined(*layers: nn.Module) -> bool:
    """Whether these are plain linear layers without biases and hooks, which read what only one of them may."""
    return all(
        type(layer) is nn.Linear and layer.bias is None and not layer._forward_pre_hooks and not layer._forward_hooks
        for layer in layers
    )


def _forward(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return linear(inputs, layer.weight, layer.bias)


def _is_worth_it(inputs: Tensor, weight: Tensor) -> bool:
    return HAS_ONEDNN and inputs.numel() * weight.shape[0] >= LEAST_WORK and can_be_read(inputs, weight)


class _Linear(torch.autograd.Function):
    """For products that are worth it. d / d inputs is one with the weight too, transposed, and as large."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return by_onednn(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        of_inputs, of_weight, of_bias = ctx.needs_input_grad
        rows = gradients[0].flatten(0, -2)  # (N, m)
        return (
            by_onednn(gradients[0], weight.T) if of_inputs else None,
            weight_gradient(rows, inputs.flatten(0, -2)) if of_weight else None,
            rows.sum(dim=0) if of_bias else None,
        )
