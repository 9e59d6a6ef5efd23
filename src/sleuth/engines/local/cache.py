"""The KV cache: pages of keys and values of every layer, in a pool of limited size, and which of them hold the tokens
of a slot (arXiv:2309.06180)."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from transformers import PretrainedConfig

from sleuth.host.disk import shown
from sleuth.host.memory import FREE_SHARE, free_host_memory, parse_share, total_host_memory
from sleuth.kernels.card_pass import PAGE
from sleuth.kernels.compiled import compiled, compiled_in_parallel, is_compiled_for, prange
from sleuth.kernels.device import release_cached_memory, sent
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


def pages_of(
    token_bytes: int,
    device: torch.device,
    *,
    slots: int,
    context: int,
    cache_memory: str | None,
    recorded: int | None = None,
) -> int:
    """The number of pages of the cache for such an engine, where there are requests for so many: as many as fit into
    `cache_memory` ("8GB", or "40%" of the device's memory), by default into a share of the free memory; or `recorded`.
    Raises SleuthError if one sequence does not fit. `token_bytes` are the `bytes_per_token` of its model."""
    least = -(-context // PAGE)
    page_bytes = PAGE * token_bytes
    if recorded is None:
        on_card = device.type == "cuda"
        free, total = torch.cuda.mem_get_info(device) if on_card else (free_host_memory(), total_host_memory())
        share = int(FREE_SHARE.get(device.type, 0.5) * free)
        recorded = (share if cache_memory is None else parse_share(cache_memory, total)) // page_bytes
    pages = min(recorded, slots * least)
    if pages < least:
        budget = "the share of the free memory" if cache_memory is None else f'cache_memory = "{cache_memory}"'
        raise SleuthError(
            f"{budget} holds {pages * PAGE} tokens of keys and values, and one sequence may have "
            f"context = {context}, which takes {shown(least * page_bytes)}; raise cache_memory or lower context"
        )
    return pages


class PageTable:
    """The pages of every slot: token p of a slot is in page `pages[slot, p // page_size]`, at `p % page_size`.

    Slots share the pages of a common prefix by reference. A page that several slots hold is copied before one of them
    writes to it; `take_copies` lists the copies that are due.
    """

    def __init__(self, *, slots: int, context: int, page_size: int, total: int) -> None:
        self.page_size = page_size
        self.total = total
        self.pages = np.zeros((slots, -(-context // page_size)), dtype=np.int32)
        self.held = np.zeros(slots, dtype=np.int64)  # pages of each slot
        self._holders = np.zeros(total, dtype=np.int64)  # slots of each page
        self._free = list(range(total - 1, -1, -1))  # the page that was freed last is taken first
        self._copies: list[tuple[int, int]] = []

    @property
    def free(self) -> int:
        """The number of pages that no slot holds."""
        return len(self._free)

    def needed(self, tokens: int) -> int:
        """The number of pages that hold `tokens` tokens."""
        return -(-tokens // self.page_size)

    def held_by(self, slots: np.ndarray) -> int:
        """The number of pages that the slots of a mask (slots) hold together."""
        held = np.arange(self.pages.shape[1]) < self.held[slots, None]
        return len(np.unique(self.pages[slots][held]))

    def share(self, source: int, slot: int, tokens: int) -> None:
        """Makes `slot` hold just the pages of the first `tokens` tokens of `source`, which may be the slot itself."""
        count = self.needed(tokens)
        kept = self.pages[source, :count].copy()
        self._holders[kept] += 1
        self.drop(slot)
        self.pages[slot, :count] = kept
        self.held[slot] = count

    def drop(self, slot: int) -> None:
        """Takes all pages from `slot`; those that no other slot holds are free."""
        for page in self.pages[slot, : self.held[slot]][::-1].tolist():
            self._release(page)
        self.held[slot] = 0

    def clear(self) -> None:
        """Takes all pages from all slots, and forgets copies that are due."""
        self.held.fill(0)
        self._holders.fill(0)
        self._free = list(range(self.total - 1, -1, -1))
        self._copies.clear()

    def extend(self, slot: int, tokens: int) -> None:
        """Takes free pages until `slot` has room for `tokens` tokens. There must be enough."""
        for at in range(int(self.held[slot]), self.needed(tokens)):
            self.pages[slot, at] = self._take()
            self.held[slot] = at + 1

    def not_writable(self, slots: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """The indices of the pairs whose slot needs a free page before it writes at its position: it has no page there,
        or shares it."""
        at = positions // self.page_size
        missing = at >= self.held[slots]
        return np.flatnonzero(missing | (self._holders[self.pages[slots, at]] > 1))

    def make_writable(self, slot: int, position: int) -> None:
        """Takes a free page for `position` of `slot`, a copy if the slot shares the one that it has there."""
        at = position // self.page_size
        if at >= self.held[slot]:
            self.extend(slot, position + 1)
        elif self._holders[page := int(self.pages[slot, at])] > 1:
            self.pages[slot, at] = target = self._take()
            self._release(page)
            self._copies.append((page, target))

    def take_copies(self) -> list[tuple[int, int]]:
        """The copies due since the last call, (source page, target page), to be made in order before anything is
        written."""
        copies, self._copies = self._copies, []
        return copies

    def _take(self) -> int:
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def _release(self, page: int) -> None:
        self._holders[page] -= 1
        if not self._holders[page]:
            self._free.append(page)


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
