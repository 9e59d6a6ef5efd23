"""Attention over the pages of the KV cache: a forward takes ragged rows packed into one sequence, without padding.

All else in a causal model works on single tokens, so rows need no common length there. On a CPU linear layers have
copies of their weights in a memory layout that is fast for few rows, and, where a forward only decodes, the attention
of Llama, Qwen 2 and Qwen 3 takes a third of the calls, with the bytes that transformers' layers give with
`attend_pages`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from sleuth.engines.local.cache import PagedCache
from sleuth.engines.local.paged_attention import ChunkwiseAttention, GatheredAttention, KernelAttention, PromptAttention
from sleuth.engines.local.slots import PrefillChunk, SlotTable, with_sampled
from sleuth.kernels.compiled import can_be_read, compiled, is_compiled_for
from sleuth.kernels.decode_attention import CompiledDecodeAttention, find_shared_spans
from sleuth.kernels.device import sent
from sleuth.kernels.layers import ROTATING
from sleuth.kernels.matmul import HAS_ONEDNN, by_onednn, replaced_forwards
from sleuth.types import SleuthError

DecodeAttention = CompiledDecodeAttention | GatheredAttention | KernelAttention
PrefillAttention = ChunkwiseAttention | PromptAttention

PAGED_ATTENTION = "sleuth_pages"
"""The name under which transformers knows `attend_pages`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Which of our kernels compute attention on a card: those for tokens that are `decoding`, and those for tokens of
    prompts (`prefilling`). Without them keys are padded, and each chunk has a call of its own."""

    decoding: bool = False
    prefilling: bool = False


class Batch:
    """The T tokens of one forward, packed: one for each of `decoding` (slots, rising), then those of each chunk.
    `output_indices` are those whose logits are needed; None if (nearly) all. `sampled` (slots) has the last tokens of
    slots in which the host does not know them."""

    output_indices: Tensor | None = None

    def __init__(
        self,
        table: SlotTable,
        decoding: np.ndarray,
        chunks: Sequence[PrefillChunk],
        cache: PagedCache,
        *,
        device: torch.device,
        dtype: torch.dtype,
        kernels: Kernels,
        sampled: Tensor | None = None,
    ) -> None:
        self.cache = cache
        self.count = len(decoding)
        prefilled, starts, stops = (
            np.array([getattr(chunk, name) for chunk in chunks], dtype=np.int64) for name in ("slot", "start", "stop")
        )
        slots = np.concatenate([decoding, np.repeat(prefilled, stops - starts)])
        positions = np.concatenate([table.cached[decoding], *map(np.arange, starts, stops)])
        pages = table.pages.pages
        packed = np.stack(
            [table.tokens[slots, positions], positions, pages[slots, positions // cache.page_size], slots]
        )
        self.tokens, self.positions, self.pages, on_device = sent(packed, device)  # (T) each, in one transfer
        if sampled is not None:
            self.tokens = with_sampled(self.tokens, on_device, sampled)
        self.cache_rows: Tensor | None = None  # of the tokens' keys, set in the first layer
        self.chunk_ends = np.cumsum(stops - starts)  # among the chunks' tokens
        self.chunk_outputs: Tensor | None = None  # the chunks' tokens whose outputs are computed; None: all
        self.decode = _decode_attention(table, decoding, device, dtype, kernels) if len(decoding) else None
        self.prefill = None
        if chunks:
            way = PromptAttention if kernels.prefilling else ChunkwiseAttention
            self.prefill = way(pages[prefilled], starts, stops, cache.page_size, device)
        self.longest = int(positions.max()) + 1
        self._by_window: dict[int, tuple[DecodeAttention | None, PrefillAttention | None]] = {}

    def attention(self, window: int | None) -> tuple[DecodeAttention | None, PrefillAttention | None]:
        """The attention of decoding rows and of chunks in a layer whose tokens attend to the last `window` alone."""
        if window is None or window >= self.longest:
            return self.decode, self.prefill
        if window not in self._by_window:
            decode = self.decode and self.decode.within(window)
            self._by_window[window] = decode, self.prefill and self.prefill.within(window)
        return self._by_window[window]

    def rows_for(self, kv_heads: int) -> Tensor:
        """Where the tokens' keys are written (T * kv_heads): see `PagedCache.rows`."""
        if self.cache_rows is None:
            self.cache_rows = self.cache.rows(self.pages, self.positions, kv_heads)
        return self.cache_rows

    def for_last_layer(self) -> Batch:
        """The batch for the last layer, where of a chunk only the last token's query is computed."""
        narrow = self.for_last_tokens()
        if self.prefill is not None:
            narrow.chunk_outputs = sent(self.chunk_ends - 1, self.tokens.device)
        return narrow

    def for_last_tokens(self) -> Batch:
        """The batch whose queries are those of decoding tokens and of the last token of each chunk."""
        narrow = copy.copy(self)
        narrow._by_window = {}
        narrow.prefill = self.prefill and self.prefill.for_last_tokens()
        return narrow

    def last_tokens(self) -> Tensor:
        """Which of the T tokens these are."""
        rows = np.concatenate([np.arange(self.count), self.count + self.chunk_ends - 1])
        return sent(rows, self.tokens.device)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None) -> Tensor:
        """Attention of queries (T, kv_heads, sharing, D), with those of chunks after decoding ones, to a layer's `keys`
        and `values` [kv_heads, pages, page_size, D] -> as query."""
        decode, prefill = self.attention(window)
        if prefill is None:
            assert decode is not None
            return decode.attend(query, keys, values, scale)
        if isinstance(decode, KernelAttention) and isinstance(prefill, PromptAttention) and self.chunk_outputs is None:
            output = query.new_empty(query.shape)
            decode.attend(query[: self.count], keys, values, scale, output[: self.count])
            prefill.attend(query[self.count :], keys, values, scale, output[self.count :])
            return output
        parts = [] if decode is None else [decode.attend(query[: self.count], keys, values, scale)]
        queries, wanted = query[self.count :], self.chunk_outputs
        output = prefill.attend(queries if wanted is None else queries.index_select(0, wanted), keys, values, scale)
        if wanted is not None:
            output = output.new_zeros(len(queries), *output.shape[1:]).index_copy_(0, wanted, output)
        return torch.cat([*parts, output]) if parts else output


def _decode_attention(
    table: SlotTable, slots: np.ndarray, device: torch.device, dtype: torch.dtype, kernels: Kernels
) -> DecodeAttention:
    pages, lengths = table.pages.pages, table.cached[slots]
    if is_compiled_for(device, dtype):
        levels, starts = find_shared_spans(table.tokens, slots, lengths)
        return CompiledDecodeAttention(pages, slots, starts, lengths, levels)
    held = pages[slots, : table.pages.needed(int(lengths.max()) + 1)]
    if kernels.decoding:
        return KernelAttention.of(held, lengths + 1, table.pages.page_size, device)
    return GatheredAttention(held, lengths + 1, table.pages.page_size, device)


def attend_pages(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    batch: Batch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in every layer while the engine runs.

    `query` (1, H, T, D), `key` and `value` (1, kv_heads, T, D) of the new tokens -> (1, T, H, D). Keys and values are
    written to the cache first.
    """
    if any(options.get(name) is not None for name in ("softcap", "s_aux")):
        raise SleuthError(f"the local engine has no soft caps or attention sinks: {type(module).__name__}")
    _, kv_heads, total, size = key.shape
    rows = batch.rows_for(kv_heads)
    keys, values = batch.cache.write(module.layer_idx, rows, key[0].transpose(0, 1), value[0].transpose(0, 1))
    query = query[0].transpose(0, 1).unflatten(1, (kv_heads, -1))  # (T, kv_heads, sharing, D)
    scale = size**-0.5 if scaling is None else scaling
    output = batch.attend(query, keys, values, scale, sliding_window)
    return output.reshape(1, total, -1, output.shape[-1]), None


AttentionInterface.register(PAGED_ATTENTION, attend_pages)


MIN_PACKED = 2**17
"""Weights of at least this many elements are packed for oneDNN, which takes about two thirds of the time for tens of
rows; smaller ones are transposed for torch's own product."""

ROWS = 64
"""The number of rows that weights are packed for."""

SIZES_PER_OCTAVE = 8
"""Row counts are padded to this many sizes between a power of two and the next: oneDNN compiles code for each size,
which takes as long as several products."""


JOINT_LAYERS = ("q_proj", "k_proj", "v_proj")
"""Layers of one module that are computed in one product. (Where the last layer skips queries their inputs differ, and
part of the product is unused: one layer's, during prefill.)"""

Product = Callable[[Tensor], Tensor]


class DecodeWeights:
    """Packed or transposed copies of the weights of all linear layers of `model`, made when first needed.

    Packing a weight costs as much as multiplying tens of rows by it, so it is done once per update. Only fp32 weights
    on a CPU are copied; nothing else gains.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._forwards: list[tuple[nn.Linear, Product]] | None = None

    def clear(self) -> None:
        """Drops the copies. Call when the model's weights have changed."""
        self._forwards = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While entered, the layers use the copies instead of their own weights. For inference only."""
        if self._forwards is None:
            self._forwards = list(_copied_forwards(self.model))
        with replaced_forwards(self._forwards):
            yield


class _JointProduct:
    """Layers called one after another with the same inputs: the first call computes the outputs of all of them."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        biases = [layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias for layer in layers]
        bias = None if all(layer.bias is None for layer in layers) else torch.cat(biases)
        self.product = _product(torch.cat([layer.weight for layer in layers]), bias)
        self.widths = [len(layer.weight) for layer in layers]
        self.inputs: Tensor | None = None
        self.outputs: Sequence[Tensor] = ()

    def multiply(self, inputs: Tensor, *, number: int) -> Tensor:
        """The output of layer `number`."""
        if inputs is not self.inputs:
            self.inputs, self.outputs = inputs, self.product(inputs).split(self.widths, dim=-1)
        output = self.outputs[number]
        if number == len(self.widths) - 1:
            self.inputs, self.outputs = None, ()
        return output


def _copied_forwards(model: nn.Module) -> Iterator[tuple[nn.Linear, Product]]:
    joint: set[nn.Module] = set()
    for module in model.modules():
        layers = [layer for name in JOINT_LAYERS if _is_copied(layer := getattr(module, name, None))]
        if len(layers) == len(JOINT_LAYERS):
            joined = _JointProduct(layers)
            yield from ((layer, partial(joined.multiply, number=number)) for number, layer in enumerate(layers))
            joint.update(layers)
        elif _is_copied(module) and module not in joint:
            yield module, _product(module.weight, module.bias)


def _is_copied(layer: object) -> TypeGuard[nn.Linear]:
    return type(layer) is nn.Linear and layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32


def _product(weight: Tensor, bias: Tensor | None) -> Product:
    weight = weight.detach()
    if HAS_ONEDNN and weight.numel() >= MIN_PACKED:
        return partial(_by_packed, weight=torch.ops.mkldnn._reorder_linear_weight(weight, ROWS), bias=bias)
    return partial(F.linear, weight=weight.t().contiguous().t(), bias=bias)


def _by_packed(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(1, T, n) -> (1, T, m)."""
    rows = inputs.shape[1]
    if not rows:  # of a forward that ends no prompt, the head
        return inputs.new_zeros(1, 0, weight.shape[0])
    if missing := -rows % max(1, (1 << rows.bit_length() - 1) // SIZES_PER_OCTAVE):
        inputs = F.pad(inputs, (0, 0, 0, missing))
    return by_onednn(inputs, weight, bias)[:, :rows]


def decode_forwards(model: nn.Module) -> list[tuple[nn.Module, Callable[..., Any]]]:
    """The model's attention layers with forwards for batches that only decode, for `replaced_forwards`.

    These fall back to the layer's own forward for other batches, and for tensors that are not plain fp32 on a CPU.
    """
    layers = [module for module in model.modules() if type(module) in ROTATING and "forward" not in module.__dict__]
    return [(layer, partial(_attention_forward, layer)) for layer in layers]


def _attention_forward(
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
