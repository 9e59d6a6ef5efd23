"""Functions that torch compiles into few kernels, for the learner's passes on a card, where each operation of its own
reads and writes all of its tensors: RMS norms, gated feed-forward blocks, and rotary embeddings with the norms of
queries and keys.

All is computed in fp32 and rounded once, where the layers of transformers round a norm before its weight, and each
product of a rotation. Backward passes recompute what is not an input. Nothing is fused on a CPU, whose loops numba
compiles, nor in the engine, whose batches are too small to pay for the guards of each call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sleuth.host.threads import to_stderr
from sleuth.kernels import lean_layers
from sleuth.kernels.device import is_out_of_memory, kernel_problem, line_of
from sleuth.kernels.layers import NORMS, ROTATING, compiled_forwards
from sleuth.kernels.matmul import JoinedProduct, can_be_joined, precision_of

OPTIONS: dict[str, Any] = {"deterministic": True}
"""The order of sums is fixed, where inductor would otherwise time several and take the fastest."""
CACHES = ("past_key_values", "cache")
"""What a layer's cache is called, in older and newer versions of transformers."""


class _Switch:
    on = True


def switch_off() -> None:
    """Fuses nothing in later passes of this process."""
    _Switch.on = False


def is_on() -> bool:
    """Whether passes that begin now fuse. One that has begun goes on as it is: layers that a checkpoint runs again
    must save the same tensors."""
    return _Switch.on


def on_card(*tensors: Tensor) -> bool:
    """Whether fused functions take these tensors: on a card, and no subclass, such as a shard (DTensor)."""
    return all(tensor.is_cuda and type(tensor) in (Tensor, nn.Parameter) for tensor in tensors)


class Fused:
    """A function of tensors, compiled at its first call: one graph for all numbers of rows from 2 on.

    Positional arguments have these rows as their first dimension (None is skipped), keyword arguments have fixed
    shapes; all other dimensions are constants of the graph. Call it without gradients, with detached tensors: autograd
    belongs to its caller, so that one graph serves all modes. If it cannot be compiled, as without triton, all
    functions run as they are written from then on, and `is_on` is False.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._compiled: Callable[..., Any] | None = None
        self.__doc__ = function.__doc__

    def __call__(self, *by_row: Tensor | None, **fixed: Any) -> Any:
        if not _Switch.on:
            return self._function(*by_row, **fixed)
        try:
            return self._fused(*by_row, **fixed)
        except Exception as error:  # of the compiler, of triton or of the C++ compiler: each has its own classes
            if is_out_of_memory(error):
                raise
            switch_off()
            problem = f"{type(error).__name__}: {line_of(error)}"
            to_stderr(f"fused functions are off, which makes updates slower: {problem}")
        return self._function(*by_row, **fixed)

    def _fused(self, *by_row: Tensor | None, **fixed: Any) -> Any:
        from torch._dynamo import maybe_mark_dynamic  # seconds, which only a card needs

        if self._compiled is None:
            self._compiled = torch.compile(self._function, fullgraph=True, dynamic=False, options=OPTIONS)
        for tensor in by_row:
            if tensor is not None:
                maybe_mark_dynamic(tensor, 0)
        return self._compiled(*by_row, **fixed)


def fused_forwards(model: nn.Module) -> list[tuple[nn.Module, Callable[..., Any]]]:
    """The model's attention layers, and the modules of `compiled_forwards`, with fused forwards for
    `replaced_forwards`.

    For tensors that are not fused these are the layers' own forwards and the compiled ones. Switched off, only the
    compiled ones.
    """
    if not is_on():
        return [*compiled_forwards(model)]
    forwards: list[tuple[nn.Module, Callable[..., Any]]] = []
    for module, otherwise in compiled_forwards(model):
        forward = _norm_forward if type(module).__name__ in NORMS else _mlp_forward
        forwards.append((module, partial(forward, module, otherwise)))
    for module in model.modules():
        if type(module) not in ROTATING or "forward" in module.__dict__:
            continue
        if all(type(norm).__name__ in NORMS for norm in _norms_of(module)):
            forwards.append((module, partial(_attention_forward, module)))
    return forwards


def _norms_of(layer: Any) -> list[Any]:
    """The norms of queries and keys, which Qwen 3 has."""
    return [layer.q_norm, layer.k_norm] if hasattr(layer, "q_norm") else []


def _norm_forward(norm: Any, otherwise: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    if not on_card(inputs, norm.weight):
        return otherwise(inputs)
    rows = inputs.reshape(-1, inputs.shape[-1])
    return _Norm.apply(rows, norm.weight, norm.variance_epsilon).view(inputs.shape)


def _mlp_forward(block: Any, otherwise: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    if not on_card(inputs):
        return otherwise(inputs)
    rows, layers = inputs.flatten(0, -2), (block.gate_proj, block.up_proj)
    if can_be_joined(*layers):
        product = JoinedSwishProduct.apply(JoinedProduct.apply(rows, *(layer.weight for layer in layers)))
    else:
        product = _SwishProduct.apply(*(layer(rows) for layer in layers))
    return block.down_proj(product.view(*inputs.shape[:-1], -1))


def _attention_forward(
    layer: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """As transformers' forward: `hidden_states` (1, N, width) -> the same shape, and what the attention returns. The
    `options` are passed on as they came: one that a version does not have, or is about to lose, it warns about."""
    cos, sin = position_embeddings  # (1, N, D)
    norms = _norms_of(layer)
    fused = on_card(hidden_states, cos, sin, *(norm.weight for norm in norms))
    cached = any(options.get(name) is not None for name in CACHES)
    if not fused or cached or len(hidden_states) != 1:
        options["position_embeddings"] = position_embeddings
        return type(layer).forward(layer, hidden_states, attention_mask=attention_mask, **options)
    options = {name: option for name, option in options.items() if name not in CACHES}
    count, size = hidden_states.shape[1], layer.head_dim
    query, key, value = (
        project(hidden_states).view(count, -1, size) for project in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    if norms:
        weights, epsilon = (norm.weight for norm in norms), norms[0].variance_epsilon
        query, key = _NormedRotation.apply(query, key, cos[0], sin[0], *weights, epsilon)
    else:
        query, key = _Rotation.apply(query, key, cos[0], sin[0])
    by_head = (tensor.view(1, count, -1, size).transpose(1, 2) for tensor in (query, key, value))
    if hasattr(layer, "sliding_window"):  # Llama's layers pass none
        options["sliding_window"] = layer.sliding_window
    output, shares = ALL_ATTENTION_FUNCTIONS[layer.config._attn_implementation](
        layer,
        *by_head,
        attention_mask,
        dropout=layer.attention_dropout if layer.training else 0.0,
        scaling=layer.scaling,
        **options,
    )
    return layer.o_proj(output.reshape(1, count, -1)), shares


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.epsilon = epsilon
        return norm(rows.detach(), weight=weight.detach(), epsilon=epsilon)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        rows, weight = (tensor.detach() for tensor in ctx.saved_tensors)
        return (*norm_grads(rows, gradients[0].detach(), weight=weight, epsilon=ctx.epsilon), None)


class _SwishProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return swish_product(gate.detach(), up.detach())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        gate, up = (tensor.detach() for tensor in ctx.saved_tensors)
        return swish_product_grads(gate, up, gradients[0].detach())


class JoinedSwishProduct(torch.autograd.Function):
    """Of gates and ups side by side (N, 2m), by kernels of ours: a function that torch compiles computes each number of
    such a gradient twice."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return _layer_kernels(gate_up).swish_product(gate_up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # type: ignore[override]
        [gate_up] = ctx.saved_tensors
        return _layer_kernels(gate_up).swish_product_grads(gate_up, gradients[0].contiguous())


def _layer_kernels(tensor: Tensor) -> ModuleType:
    """The kernels of a card, where they work there."""
    if not tensor.is_cuda or not _has_kernels(tensor.device, tensor.dtype):
        return lean_layers
    from sleuth.kernels import layer_kernels

    return layer_kernels


@cache
def _has_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels of a card give the gradient of a few random gates that plain torch gives."""
    if find_spec("triton") is None:  # it comes with torch for cards
        return False

    def error() -> float:
        from sleuth.kernels import layer_kernels

        generator = torch.Generator(device).manual_seed(0)
        inputs = [torch.randn(5, n, generator=generator, device=device, dtype=dtype) for n in (96, 48)]
        expected = lean_layers.swish_product_grads(*inputs)
        return ((layer_kernels.swish_product_grads(*inputs) - expected).norm() / expected.norm()).item()

    problem = kernel_problem(device, error, lean_layers.TOLERANCE)
    if problem is not None:
        to_stderr(f"gates are computed in plain torch, which is slower, as our kernels do not work here: {problem}")
    return problem is None


class _NormedRotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        """Of queries, keys, cosines, sines, the two weights and the epsilon of `normed_rotation`."""
        *tensors, ctx.epsilon = inputs
        ctx.save_for_backward(*tensors)
        *by_row, query_weight, key_weight = (tensor.detach() for tensor in tensors)
        return normed_rotation(*by_row, query_weight=query_weight, key_weight=key_weight, epsilon=ctx.epsilon)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        *by_row, query_weight, key_weight = (tensor.detach() for tensor in ctx.saved_tensors)
        arrived = (gradient.detach() for gradient in gradients)
        weights = {"query_weight": query_weight, "key_weight": key_weight}
        of_query, of_key, *of_weights = normed_rotation_grads(*by_row, *arrived, **weights, epsilon=ctx.epsilon)
        return of_query, of_key, None, None, *of_weights, None


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        return rotation(query.detach(), key.detach(), cos.detach(), sin.detach())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        cos, sin = (tensor.detach() for tensor in ctx.saved_tensors)
        of_query, of_key = (gradient.detach() for gradient in gradients)
        return *rotation(of_query, of_key, cos, -sin), None, None


@Fused
def norm(rows: Tensor, *, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * weight for each row x of (N, n), with `weight` (n): (N, n)."""
    return (_normed(rows, epsilon)[0] * weight).to(rows.dtype)


@Fused
def norm_grads(rows: Tensor, gradient: Tensor, *, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """From the gradient of `norm`: those of rows (N, n) and of the weight (n)."""
    return _norm_grads(rows, gradient.to(precision_of(rows)), weight, epsilon)


@Fused
def swish_product(gate: Tensor, up: Tensor) -> Tensor:
    """gate / (1 + exp(-gate)) * up: (N, m) each."""
    exact = gate.to(precision_of(gate))
    return (exact * exact.sigmoid() * up).to(gate.dtype)


@Fused
def swish_product_grads(gate: Tensor, up: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """From the gradient of `swish_product`: those of gate and up. d silu(x) / dx = s (1 + x (1 - s)) with the sigmoid
    s."""
    exact, arrived = gate.to(precision_of(gate)), gradient.to(precision_of(gate))
    sigmoid = exact.sigmoid()
    of_gate = arrived * up * sigmoid * (1 + exact * (1 - sigmoid))
    return of_gate.to(gate.dtype), (arrived * exact * sigmoid).to(up.dtype)


@Fused
def normed_rotation(
    query: Tensor,
    key: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    query_weight: Tensor,
    key_weight: Tensor,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """Queries (N, H, D) and keys (N, kv_heads, D), normed with their weights (D) and turned by angles (N, D)."""
    normed = (_normed(query, epsilon)[0] * query_weight, _normed(key, epsilon)[0] * key_weight)
    return _turned(normed[0], cos, sin).to(query.dtype), _turned(normed[1], cos, sin).to(key.dtype)


@Fused
def normed_rotation_grads(
    query: Tensor,
    key: Tensor,
    cos: Tensor,
    sin: Tensor,
    of_query: Tensor,
    of_key: Tensor,
    *,
    query_weight: Tensor,
    key_weight: Tensor,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """From the gradients of `normed_rotation`: those of queries, keys and the two weights. A rotation's transpose turns
    back."""
    grad_query, grad_query_weight = _norm_grads(query, _turned(of_query, cos, -sin), query_weight, epsilon)
    grad_key, grad_key_weight = _norm_grads(key, _turned(of_key, cos, -sin), key_weight, epsilon)
    return grad_query, grad_key, grad_query_weight, grad_key_weight


@Fused
def rotation(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries (N, H, D) and keys (N, kv_heads, D) turned by angles (N, D)."""
    return _turned(query, cos, sin).to(query.dtype), _turned(key, cos, sin).to(key.dtype)


def _normed(rows: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Rows (..., n) over their root mean square, and one over that (..., 1)."""
    exact = rows.to(precision_of(rows))
    scale = torch.rsqrt(exact.square().mean(dim=-1, keepdim=True) + epsilon)
    return exact * scale, scale


def _norm_grads(rows: Tensor, gradient: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """With r = 1 / sqrt(mean(x^2) + epsilon) and y = x r: d / d weight = g y, d / dx = r (g w - y mean(g w y))."""
    normed, scale = _normed(rows, epsilon)
    weighted = gradient * weight
    grad_rows = scale * (weighted - normed * (weighted * normed).mean(dim=-1, keepdim=True))
    grad_weight = gradient * normed
    while grad_weight.dim() > 1:  # heads first: a kernel that adds up both at once divides for each number's index
        grad_weight = grad_weight.sum(dim=-2)
    return grad_rows.to(rows.dtype), grad_weight.to(weight.dtype)


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads (N, H, D), whose second half is turned with its first, in fp32. Both halves have the same angles.

    Reads by a flip and not by `cat`, whose result would be stored where two kernels need it.
    """
    heads = heads.to(precision_of(heads))
    size = heads.shape[-1]
    flipped = heads.unflatten(-1, (2, size // 2)).flip(-2).flatten(-2)
    is_first = torch.arange(size, device=heads.device) < size // 2
    return heads * cos[:, None] + flipped * torch.where(is_first, -sin, sin)[:, None]
