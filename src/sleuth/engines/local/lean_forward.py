"""The forward of Llama, Qwen 2 and Qwen 3 on a card without modules between its kernels: ten launches a layer of a step
that decodes, where transformers' layers take 29.

Queries, keys and values are one product with the weights, and so are gates and their factors. The weights stay the
learner's own: those of a product are moved into one buffer, whose parts the model's parameters become.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

from sleuth.engines.local.attention import Batch
from sleuth.kernels import lean_layers
from sleuth.kernels.card_pass import PAGE
from sleuth.kernels.device import kernel_problem
from sleuth.kernels.layers import SILU
from sleuth.kernels.matmul import joined

LEAN = (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Linear layers of the same inputs as one: their weights (m, n), biases (m), and low-rank adapters with the columns
    that each adds to."""

    weight: Tensor
    bias: Tensor | None
    adapters: Sequence[tuple[slice, Tensor, Tensor, float]] = ()

    @staticmethod
    def of(*layers: nn.Module) -> Product:
        """Moves the layers' weights into one buffer, unless they are in one."""
        plain: list[Any] = [getattr(layer, "base_layer", layer) for layer in layers]
        weights = [layer.weight for layer in plain]
        adapters, stop = [], 0
        for layer, weight in zip(layers, weights, strict=True):
            start, stop = stop, stop + len(weight)
            for name in getattr(layer, "active_adapters", ()):
                factors = (getattr(layer, part)[name].weight for part in ("lora_A", "lora_B"))
                adapters.append((slice(start, stop), *factors, layer.scaling[name]))  # type: ignore[index]
        biases = [layer.bias for layer in plain]
        bias = None if biases[0] is None else biases[0] if len(layers) == 1 else joined(biases)
        return Product(weight=weights[0] if len(layers) == 1 else joined(weights), bias=bias, adapters=adapters)

    def __call__(self, inputs: Tensor) -> Tensor:
        """(T, n) -> (T, m)."""
        output = F.linear(inputs, self.weight, self.bias)
        for columns, down, up, scale in self.adapters:
            output[:, columns].addmm_(inputs @ down.T, up.T, alpha=scale)
        return output


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What a layer computes with."""

    index: int
    projection: Product  # of queries, keys and values
    norms: tuple[Tensor, Tensor] | None  # of queries and keys
    output: Product
    gate_up: Product
    down: Product
    norm: Tensor  # before attention
    middle_norm: Tensor
    head_size: int
    kv_heads: int
    scale: float
    window: int | None

    @staticmethod
    def of(layer: Any) -> Layer:
        attention, block = layer.self_attn, layer.mlp
        return Layer(
            index=attention.layer_idx,
            projection=Product.of(attention.q_proj, attention.k_proj, attention.v_proj),
            norms=(attention.q_norm.weight, attention.k_norm.weight) if hasattr(attention, "q_norm") else None,
            output=Product.of(attention.o_proj),
            gate_up=Product.of(block.gate_proj, block.up_proj),
            down=Product.of(block.down_proj),
            norm=layer.input_layernorm.weight,
            middle_norm=layer.post_attention_layernorm.weight,
            head_size=attention.head_dim,
            kv_heads=attention.config.num_key_value_heads,
            scale=attention.scaling,
            window=getattr(attention, "sliding_window", None),
        )


def can_be_lean(model: PreTrainedModel) -> bool:
    """Whether the model has this shape: its class, its activation, and layers with weights of one dtype that nothing
    else was put in place of, but for peft's adapters."""
    if type(model) not in LEAN:
        return False
    kinds = {type(module) for module in model.modules()}
    is_plain = all(kind.__module__.partition(".")[0] in ("torch", "transformers", "peft") for kind in kinds)
    blocks = [module for module in model.modules() if hasattr(module, "act_fn")]
    dtypes = {weight.dtype for weight in model.parameters()}
    return is_plain and all(type(block.act_fn) in SILU for block in blocks) and len(dtypes) == 1


class LeanForward:
    """Computes the logits of a batch. `kernels` has the functions of `lean_layers`. Call `clear` when weights of the
    model may have been put elsewhere, as publishing new ones may."""

    def __init__(self, model: PreTrainedModel, kernels: Any = lean_layers) -> None:
        self._model: Any = model
        self._kernels = kernels
        self._layers: list[Layer] = []

    @staticmethod
    def on_card(model: PreTrainedModel, log: Callable[[str], None]) -> LeanForward | None:
        """One by the kernels of a card; None for models of another shape, elsewhere, and where the kernels do not work,
        which `log` is told."""
        if model.device.type != "cuda" or not can_be_lean(model):
            return None
        if (problem := kernels_problem(model)) is not None:
            log(f"the engine calls the model's own layers, which is slower, as our kernels do not work here: {problem}")
            return None
        from sleuth.kernels import layer_kernels

        return LeanForward(model, layer_kernels)

    def clear(self) -> None:
        """Forgets where the weights are."""
        self._layers = []

    def __call__(self, batch: Batch) -> Tensor:
        """The logits (B, V) after each decoding token and the last token of each chunk. In the last layer nothing else
        goes on from attention."""
        body, kernels = self._model.base_model, self._kernels
        self._layers = layers = self._layers or [Layer.of(layer) for layer in body.layers]
        epsilon: float = body.norm.variance_epsilon
        hidden = F.embedding(batch.tokens, body.embed_tokens.weight)  # (T, n)
        cos, sin = (angles[0] for angles in body.rotary_emb(hidden, batch.positions[None]))
        normed = kernels.add_norm(hidden, None, layers[0].norm, epsilon)
        for layer, norm in zip(layers, [*(layer.norm for layer in layers[1:]), body.norm.weight], strict=True):
            product = layer.projection(normed)
            keys, values = batch.cache.of_layer(
                layer.index, product.unflatten(1, (-1, layer.head_size))[:, : layer.kv_heads]
            )
            angles, where = (cos, sin, layer.norms, epsilon), (batch.pages, batch.positions, keys, values)
            query = kernels.rotate_and_write(product, *angles, *where)
            query = query.unflatten(1, (layer.kv_heads, -1))  # (T, kv_heads, sharing, D)
            if layer is layers[-1] and batch.prefill is not None:
                rows = batch.last_tokens()
                hidden = hidden.index_select(0, rows)
                query, batch = query.index_select(0, rows), batch.for_last_tokens()
            attended = batch.attend(query, keys, values, layer.scale, layer.window)
            update = layer.output(attended.flatten(1))
            normed = kernels.add_norm(hidden, update, layer.middle_norm, epsilon)
            update = layer.down(kernels.swish_product(layer.gate_up(normed)))
            normed = kernels.add_norm(hidden, update, norm, epsilon)
        return self._model.get_output_embeddings()(normed)


def kernels_problem(model: PreTrainedModel) -> str | None:
    """Why `layer_kernels` cannot be used for this model; None if they work: the functions compute a few random tokens
    and are compared with those of `lean_layers`."""
    if find_spec("triton") is None:  # it comes with torch for cards
        return "there is no Triton"
    body: Any = model.base_model
    layer = Layer.of(body.layers[0])
    sizes = layer.kv_heads, layer.head_size, len(layer.projection.weight), layer.norms is not None
    return _problem(model.device, model.dtype, len(body.norm.weight), *sizes)


@cache
def _problem(
    device: torch.device, dtype: torch.dtype, width: int, kv_heads: int, size: int, projected: int, normed: bool
) -> str | None:
    def computed(kernels: ModuleType) -> list[Tensor]:
        generator = torch.Generator(device).manual_seed(0)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=device, dtype=dtype)

        hidden, keys, values = drawn(5, width), drawn(kv_heads, 3, PAGE, size), drawn(kv_heads, 3, PAGE, size)
        after = kernels.add_norm(hidden, drawn(5, width), drawn(width), 1e-6)
        product, cos, sin, gates = drawn(5, projected), drawn(5, size // 2), drawn(5, size // 2), drawn(5, 2 * width)
        norms = (drawn(size), drawn(size)) if normed else None
        pages, positions = torch.tensor([[0, 1, 2, 1, 0], [PAGE - 1, PAGE, 2 * PAGE + 3, 7, 0]], device=device)
        angles = (torch.cat([half, half], dim=1) for half in (cos, sin))
        query = kernels.rotate_and_write(product, *angles, norms, 1e-6, pages, positions, keys, values)
        return [hidden, after, kernels.swish_product(gates), query, keys, values]

    def error() -> float:
        from sleuth.kernels import layer_kernels

        pairs = zip(computed(layer_kernels), computed(lean_layers), strict=True)
        return max(((ours - plain).norm() / plain.norm()).item() for ours, plain in pairs)

    return kernel_problem(device, error, lean_layers.TOLERANCE)
