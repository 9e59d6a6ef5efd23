"""Attention layers of Llama, Qwen 2 and Qwen 3 where a forward only decodes, on a CPU: the bytes that transformers'
layers give with `attend_pages`, in a third of the calls, which take most of the time of a tiny model's forward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from sleuth.engines.local.attention import Batch
from sleuth.kernels.compiled import can_be_read, compiled
from sleuth.kernels.compiled_decode_attention import CompiledDecodeAttention
from sleuth.kernels.compiled_layers import ROTATING


def decode_forwards(model: nn.Module) -> list[tuple[nn.Module, Callable[..., Any]]]:
    """The model's attention layers with forwards for batches that only decode, for `replaced_forwards`.

    These fall back to the layer's own forward for other batches, and for tensors that are not plain fp32 on a CPU.
    """
    layers = [module for module in model.modules() if type(module) in ROTATING and "forward" not in module.__dict__]
    return [(layer, partial(_forward, layer)) for layer in layers]


def _forward(
    layer: Any, hidden_states: Tensor, *, position_embeddings: tuple[Tensor, Tensor], batch: Batch, **options: Any
) -> tuple[Tensor, None]:
    """`hidden_states` (1, T, width) of the T decoding slots -> the same shape."""
    cos, sin = position_embeddings  # (1, T, D)
    decode, windowed = batch.decode, getattr(layer, "sliding_window", None) is not None
    if (
        batch.prefill is not None
        or windowed
        or not isinstance(decode, CompiledDecodeAttention)
        or not can_be_read(hidden_states, cos, sin)
    ):
        options |= {"position_embeddings": position_embeddings, "batch": batch}
        return type(layer).forward(layer, hidden_states, **options)
    count, size = hidden_states.shape[1], layer.head_dim
    query, key, value = (
        product(hidden_states).view(count, -1, size) for product in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    if type(layer) is Qwen3Attention:
        query, key = layer.q_norm(query), layer.k_norm(key)
    rotated, kv_heads = query.new_empty(query.shape), key.shape[1]
    keys, values = batch.cache.of_layer(layer.layer_idx, key)
    where = batch.rows_for(kv_heads).numpy().reshape(count, kv_heads)
    written = (tensor.view(-1, size).numpy() for tensor in (keys, values))
    turns = cos[0].numpy(), sin[0].numpy()
    _rotate_and_write(query.numpy(), key.numpy(), value.numpy(), *turns, where, rotated.numpy(), *written)
    output = decode.attend(rotated.view(count, kv_heads, -1, size), keys, values, layer.scaling)
    return layer.o_proj(output.view(1, count, -1)), None


@partial(compiled, exact=True)
def _rotate(head, cos, sin, output):
    """`head` (D) turned by its position's angles: as torch adds the two products, each rounded."""
    half = len(head) // 2
    for at in range(half):
        output[at] = head[at] * cos[at] + (-head[at + half]) * sin[at]
    for at in range(half, len(head)):
        output[at] = head[at] * cos[at] + head[at - half] * sin[at]


@partial(compiled, exact=True)
def _rotate_and_write(query, key, value, cos, sin, rows, rotated, keys, values):
    """Fills `rotated` (T, H, D) and the cache's `keys` and `values` at `rows` (T, kv_heads)."""
    for token in range(len(query)):
        for head in range(query.shape[1]):
            _rotate(query[token, head], cos[token], sin[token], rotated[token, head])
        for head in range(key.shape[1]):
            row = rows[token, head]
            _rotate(key[token, head], cos[token], sin[token], keys[row])
            for at in range(value.shape[2]):
                values[row, at] = value[token, head, at]
