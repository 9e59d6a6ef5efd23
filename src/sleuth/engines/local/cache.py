"""The KV cache: pages of keys and values of every layer, in a pool of limited size."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from transformers import PretrainedConfig

from sleuth.engines.local.pages import PAGE
from sleuth.host.disk import shown
from sleuth.host.memory import FREE_SHARE, free_host_memory, parse_share, total_host_memory
from sleuth.kernels.allocator import release_cached_memory
from sleuth.kernels.compiled import compiled, compiled_in_parallel, is_compiled_for, prange
from sleuth.kernels.transfers import sent
from sleuth.types import SleuthError


def bytes_per_token(config: PretrainedConfig, dtype: torch.dtype) -> int:
    """The bytes of a token's keys and values in all layers."""
    text = config.get_text_config()
    kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return 2 * text.num_hidden_layers * kv_heads * head_size(config) * dtype.itemsize


def head_size(config: PretrainedConfig) -> int:
    """The numbers of a head's key."""
    text = config.get_text_config()
    return getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads


def pages_within(budget: str | None, *, needed: int, page_bytes: int, device: torch.device) -> int:
    """How many pages of `page_bytes` the cache has: at most `needed`, and as many as fit into the `budget` ("8GB", or
    "40%" of the device's memory), by default into a share of the free memory."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
    else:
        free, total = free_host_memory(), total_host_memory()
    limit = int(FREE_SHARE.get(device.type, 0.5) * free) if budget is None else parse_share(budget, total)
    return min(needed, limit // page_bytes)


def pages_of(
    token_bytes: int,
    device: torch.device,
    *,
    slots: int,
    context: int,
    cache_memory: str | None,
    recorded: int | None = None,
) -> int:
    """The number of pages of the cache for such an engine, or `recorded`, where there are requests for so many. Raises
    SleuthError if one sequence does not fit. `token_bytes` are the `bytes_per_token` of its model."""
    least = -(-context // PAGE)
    page_bytes = PAGE * token_bytes
    if recorded is not None:
        pages = min(recorded, slots * least)
    else:
        pages = pages_within(cache_memory, needed=slots * least, page_bytes=page_bytes, device=device)
    if pages < least:
        budget = "the share of the free memory" if cache_memory is None else f'cache_memory = "{cache_memory}"'
        raise SleuthError(
            f"{budget} holds {pages * PAGE} tokens of keys and values, and one sequence may have "
            f"context = {context}, which takes {shown(least * page_bytes)}; raise cache_memory or lower context"
        )
    return pages


class PagedCache:
    """Two tensors per layer, `[kv_heads, pages, page_size, head_dim]`. A layer's tensors are allocated at its first
    write, when the shapes are known."""

    def __init__(self, *, pages: int, page_size: int) -> None:
        self.pages = pages
        self.page_size = page_size
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def rows(self, pages: torch.Tensor, positions: torch.Tensor, kv_heads: int) -> torch.Tensor:
        """Row indices (T * kv_heads), in a layer flattened over heads, pages and their tokens, of the tokens at
        `positions` (T) of sequences that hold them in `pages` (T)."""
        heads = torch.arange(kv_heads, device=pages.device) * self.pages
        return ((pages[:, None] + heads) * self.page_size + (positions % self.page_size)[:, None]).flatten()

    def write(
        self, layer: int, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes `keys` and `values` (T, kv_heads, head_dim) at `rows` and returns the layer's two tensors."""
        self.of_layer(layer, keys)
        for tensor, new in zip(self.layers[layer], (keys, values), strict=True):
            if is_compiled_for(tensor.device, tensor.dtype):
                _write_rows(tensor.flatten(0, 2).numpy(), rows.numpy(), new.flatten(0, 1).numpy())
            else:
                tensor.flatten(0, 2).index_copy_(0, rows, new.flatten(0, 1))
        return self.layers[layer]

    def of_layer(self, layer: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's keys and values, for those of `like` (T, kv_heads, head_dim)."""
        if layer not in self.layers:
            self.layers[layer] = self._empty(like), self._empty(like)
        return self.layers[layer]

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copies pages, for each of `copies` (source, target) in order."""
        for independent in _independent(copies):
            pages = np.array(independent).T
            for tensor in (tensor for layer in self.layers.values() for tensor in layer):
                if is_compiled_for(tensor.device, tensor.dtype):
                    _copy(tensor.numpy(), *pages)
                else:
                    sources, targets = sent(pages, tensor.device)
                    tensor.index_copy_(1, targets, tensor.index_select(1, sources))

    def clear(self) -> None:
        """Frees all memory."""
        self.layers.clear()
        release_cached_memory()

    def _empty(self, like: torch.Tensor) -> torch.Tensor:
        # Zeros, not uninitialised memory: a masked NaN is still NaN.
        shape = like.shape[1], self.pages, self.page_size, like.shape[-1]
        if like.device.type != "cpu":
            return like.new_zeros(shape)
        # Anonymous memory takes no room until it is written.
        try:
            memory = mmap.mmap(-1, math.prod(shape) * like.itemsize, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise MemoryError(str(error)) from error
        return torch.frombuffer(memory, dtype=like.dtype).view(shape)


def _independent(copies: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """The copies in order, in lists whose members neither read nor write what another one has written."""
    batch: list[tuple[int, int]] = []
    written: set[int] = set()
    for source, target in copies:
        if written & {source, target}:
            yield batch
            batch, written = [], set()
        batch.append((source, target))
        written.add(target)
    if batch:
        yield batch


# Element by element: for whole slices numba also compiles the error about unfit shapes, which takes seconds in
# the first run on a machine.


@compiled
def _write_rows(table, rows, new):
    """`table.index_copy_(0, rows, new)`; torch's takes five times as long for a few rows."""
    for number in range(len(rows)):
        for at in range(table.shape[1]):
            table[rows[number], at] = new[number, at]


@compiled_in_parallel
def _copy(tensor, sources, targets):
    """Copies pages. Heads run in parallel, as page faults on fresh memory take most of the time."""
    for head in prange(tensor.shape[0]):
        for number in range(len(sources)):
            for token in range(tensor.shape[2]):
                for at in range(tensor.shape[3]):
                    tensor[head, targets[number], token, at] = tensor[head, sources[number], token, at]
