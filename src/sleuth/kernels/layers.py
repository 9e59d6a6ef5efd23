"""The layers of a decoder: RMS norms and gated feed-forward blocks by compiled loops, in fewer passes over memory than
torch; and a last layer without the outputs that nothing reads: only tokens that predict a trained token, or that the
next token is sampled from, go on to the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation
from transformers.models.llama.modeling_llama import LlamaAttention
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from sleuth.kernels.compiled import LOG2_E, can_be_read, compiled, compiled_in_parallel, power_of_two, prange

GATED = {f"{family}MLP" for family in ("Llama", "Qwen2", "Qwen3", "Mistral", "Ministral", "SmolLM3", "Exaone4")}
"""Feed-forward blocks of three layers, by the names of transformers' classes."""
NORMS = {name.replace("MLP", "RMSNorm") for name in GATED} | {"MixtralRMSNorm", "Qwen3MoeRMSNorm", "Phi3RMSNorm"}
"""Norms that multiply by their weight. Norms of other families look alike but differ (Gemma's: by 1 + weight)."""
SILU = (SiLUActivation, nn.SiLU)
ROTATING = (LlamaAttention, Qwen2Attention, Qwen3Attention)
"""Attention that rotates halves of its queries and keys. Layers of other families look alike but differ."""

MIN_PARALLEL_GATE, MIN_PARALLEL_NORM = 2**15, 2**17
"""With fewer elements, waking a second thread costs more than it saves."""
GATE_PART_SIZE = 2**13
"""Elements of a part, the unit of work of a thread."""
NORM_PART_SIZE, MIN_NORM_ROWS = 2**14, 16
"""About how many elements a part has, and its minimum of rows. A weight's gradient is summed part by part, so parts do
not depend on the number of threads."""


def compiled_forwards(model: nn.Module) -> list[tuple[nn.Module, Callable[[Tensor], Tensor]]]:
    """The model's norms and gated feed-forward blocks with compiled forwards, for `replaced_forwards`.

    These fall back to torch for tensors that are not plain fp32 on a CPU. Modules whose forward is already replaced are
    left out.
    """
    forwards: list[tuple[nn.Module, Callable[[Tensor], Tensor]]] = []
    for module in model.modules():
        if "forward" in module.__dict__:
            continue
        kind = type(module)
        name = kind.__name__ if kind.__module__.startswith("transformers.models.") else ""
        if name in NORMS:
            forwards.append((module, partial(_norm_forward, module)))
        elif name in GATED and type(module.act_fn) in SILU:
            forwards.append((module, partial(_mlp_forward, module)))
    return forwards


def _norm_forward(norm: Any, inputs: Tensor) -> Tensor:
    if can_be_read(inputs, norm.weight):
        return rms_norm(inputs, norm.weight, norm.variance_epsilon)
    if inputs.device.type == "cuda":  # one kernel instead of six
        return F.rms_norm(inputs, norm.weight.shape, norm.weight, norm.variance_epsilon)
    return type(norm).forward(norm, inputs)


def _mlp_forward(block: Any, inputs: Tensor) -> Tensor:
    gate, up = block.gate_proj(inputs), block.up_proj(inputs)
    if can_be_read(gate, up):
        return block.down_proj(swish_product(gate, up))
    return block.down_proj(block.act_fn(gate) * up)


def swish_product(gate: Tensor, up: Tensor) -> Tensor:
    """gate / (1 + exp(-gate)) * up, for tensors of the same shape."""
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
        grads = torch.empty_like(gate), torch.empty_like(up)
        arrays = (_flat(tensor) for tensor in (gate, up, gradients[0].contiguous(), *grads))
        _gate_backward(*arrays, GATE_PART_SIZE, shared=gate.numel() >= MIN_PARALLEL_GATE)
        return tuple(grad if needed else None for grad, needed in zip(grads, ctx.needs_input_grad, strict=True))


def _product(gate: Tensor, up: Tensor) -> Tensor:
    output = torch.empty_like(gate)
    _multiply(_flat(gate), _flat(up), _flat(output), GATE_PART_SIZE, shared=gate.numel() >= MIN_PARALLEL_GATE)
    return output


def _flat(tensor: Tensor) -> np.ndarray:
    return tensor.numpy(force=True).reshape(-1)


@compiled_in_parallel
def _multiply(gate, up, output, size):
    for part in prange((len(gate) + size - 1) // size):
        begin, end = part * size, (part + 1) * size
        _multiply_part(gate[begin:end], up[begin:end], output[begin:end])


@compiled
def _multiply_part(gate, up, output):
    """A separate function, since numba does not vectorise this loop inside the parallel one."""
    for at in range(len(gate)):
        sigmoid, _ = _sigmoid(gate[at])
        output[at] = gate[at] * sigmoid * up[at]


@compiled_in_parallel
def _gate_backward(gate, up, gradients, grad_gate, grad_up, size):
    for part in prange((len(gate) + size - 1) // size):
        begin, end = part * size, (part + 1) * size
        _backward_part(gate[begin:end], up[begin:end], gradients[begin:end], grad_gate[begin:end], grad_up[begin:end])


@compiled
def _backward_part(gate, up, gradients, grad_gate, grad_up):
    """d silu(x) / dx = s (1 + x (1 - s)) with s = 1 / (1 + exp(-x))."""
    for at in range(len(gate)):
        sigmoid, complement = _sigmoid(gate[at])
        grad_gate[at] = gradients[at] * up[at] * sigmoid * (np.float32(1) + gate[at] * complement)
        grad_up[at] = gradients[at] * gate[at] * sigmoid


@compiled
def _sigmoid(gate):
    """1 / (1 + exp(-gate)) and its complement to 1, without subtraction and so without cancellation."""
    power = power_of_two(-abs(gate) * LOG2_E)
    larger = np.float32(1) / (np.float32(1) + power)
    smaller = power * larger
    return (larger, smaller) if gate >= np.float32(0) else (smaller, larger)


def rms_norm(inputs: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * weight for each row x of `inputs` (..., n), with `weight` (n): (..., n)."""
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
        needs_inputs, needs_weight, _ = ctx.needs_input_grad
        grad_inputs = torch.empty_like(inputs if needs_inputs else inputs[:0])
        rows, size = _rows(inputs), _part_size(inputs)
        sums = np.zeros((-(-len(rows) // size) if needs_weight else 0, len(weight)), dtype=np.float32)
        arrays = rows, _copied(weight), _rows(gradients[0].contiguous()), _rows(grad_inputs), sums
        _norm_backward(*arrays, np.float32(ctx.epsilon), size, shared=rows.size >= MIN_PARALLEL_NORM)
        grad_weight = torch.from_numpy(sums.sum(axis=0)) if needs_weight else None
        return grad_inputs if needs_inputs else None, grad_weight, None


def _normalised(inputs: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    output = torch.empty_like(inputs)
    rows, size = _rows(inputs), _part_size(inputs)
    _normalise(rows, _copied(weight), _rows(output), np.float32(epsilon), size, shared=rows.size >= MIN_PARALLEL_NORM)
    return output


def _rows(tensor: Tensor) -> np.ndarray:
    """(..., n) -> (N, n)."""
    return tensor.numpy(force=True).reshape(-1, tensor.shape[-1])


def _copied(weight: Tensor) -> np.ndarray:
    """A copy: memory exported to numpy cannot be resized, and FSDP resizes that of weights."""
    return weight.detach().clone().numpy()


def _part_size(inputs: Tensor) -> int:
    """Rows of a part."""
    return max(NORM_PART_SIZE // inputs.shape[-1], MIN_NORM_ROWS)


@compiled_in_parallel
def _normalise(rows, weight, output, epsilon, size):
    for part in prange((len(rows) + size - 1) // size):
        for row in range(part * size, min((part + 1) * size, len(rows))):
            scale = _scale(rows[row], epsilon)
            for at in range(len(weight)):
                output[row, at] = rows[row, at] * scale * weight[at]


@compiled_in_parallel
def _norm_backward(rows, weight, gradients, grad_inputs, sums, epsilon, size):
    """From `gradients` (N, n) of the outputs, computes `grad_inputs` (N, n) and, part by part, the gradient of the
    weight, `sums` (parts, n). Skips either of them if it has no rows.

    With r = 1 / sqrt(mean(x^2) + epsilon): d / d weight = g x r, d / dx = r (g w - x r^2 mean(g w x)).
    """
    for part in prange((len(rows) + size - 1) // size):
        for row in range(part * size, min((part + 1) * size, len(rows))):
            scale = _scale(rows[row], epsilon)
            if len(sums) > 0:
                for at in range(len(weight)):
                    sums[part, at] += gradients[row, at] * rows[row, at] * scale
            if len(grad_inputs) > 0:
                projection = np.float32(0)
                for at in range(len(weight)):
                    projection += gradients[row, at] * weight[at] * rows[row, at]
                projection *= scale * scale / np.float32(len(weight))
                for at in range(len(weight)):
                    grad_inputs[row, at] = scale * (gradients[row, at] * weight[at] - rows[row, at] * projection)


@compiled
def _scale(row, epsilon):
    total = np.float32(0)
    for at in range(len(row)):
        total += row[at] * row[at]
    return np.float32(1) / np.sqrt(total / np.float32(len(row)) + epsilon)


MIN_UNUSED_SHARE = 1 / 8
"""With a smaller share of unused tokens, indexing costs as much as it saves."""


def select_outputs(indices: Tensor, count: int) -> Tensor | None:
    """`indices`, or None (all) if they are nearly all of the `count` tokens."""
    return indices if len(indices) <= (1 - MIN_UNUSED_SHARE) * count else None


@contextmanager
def skip_unused_outputs(model: PreTrainedModel, name: str) -> Iterator[None]:
    """In this context the last layer computes only what an extra argument of every forward, `name`, selects by its
    `output_indices` (M,) of the T tokens, ascending; None: all. That layer gets its `for_last_layer()` instead.

    Does nothing for a model whose last layer is not built of `self_attn.q_proj`, `self_attn.o_proj` and a gated `mlp`
    as those of Qwen and Llama are.
    """
    layer = _last_layer(model)
    with ExitStack() as hooks:
        if layer is not None:
            selection = _OutputSelection(name)
            hooks.callback(layer.self_attn.register_forward_pre_hook(selection.enter, with_kwargs=True).remove)
            for part in (layer.self_attn.q_proj, layer.self_attn.o_proj, layer.mlp):
                hooks.callback(part.register_forward_pre_hook(selection.gather).remove)
                hooks.callback(part.register_forward_hook(selection.scatter).remove)
        yield


def _last_layer(model: PreTrainedModel) -> Any:
    """The last layer, or None if it has other parts."""
    layers = getattr(model.base_model, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        return None
    parts = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
    names = {name for name, _ in layers[-1].named_modules()}
    return layers[-1] if names.issuperset(parts) else None


class _OutputSelection:
    """The hooks of the last layer and their shared state."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.indices: Tensor | None = None
        self.count = 0

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Runs first, when attention starts. A checkpointed layer runs again in the backward pass, possibly after other
        forwards, so the indices are read each time."""
        context = kwargs[self.name]
        self.indices = context.output_indices
        return args, kwargs if self.indices is None else {**kwargs, self.name: context.for_last_layer()}

    def gather(self, module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        """(1, T, width) -> (1, M, width)."""
        if self.indices is None:
            return args
        self.count = args[0].shape[1]
        return (args[0].index_select(1, self.indices),)

    def scatter(self, module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
        """(1, M, width) -> (1, T, width), 0 for unused tokens."""
        if self.indices is None:
            return output
        return output.new_zeros(1, self.count, output.shape[-1]).index_copy(1, self.indices, output)
