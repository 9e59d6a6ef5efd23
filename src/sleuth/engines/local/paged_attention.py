"""Attention to pages of keys and values in torch, for any device and dtype."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from sleuth.kernels.card_pass import PAGE
from sleuth.kernels.decode_attention import pack_parts
from sleuth.kernels.device import kernel_problem, sent

GATHERED_TOKENS = 2**19
"""Keys, padded, that are gathered at once for several rows: two gigabytes with the values where a token has 8 KV heads
of 128 numbers in bf16."""

KERNEL_TOLERANCE = 0.05
"""Largest difference of outputs in half precision whose values are about 1."""
NO_WINDOW = 2**30
"""More keys than a sequence has."""


class Windowed:
    """An attention that may be narrowed to the last `window` keys of each token."""

    window: int | None = None

    def within(self, window: int) -> Self:
        """The attention to the last `window` keys alone."""
        narrow = copy.copy(self)
        narrow.window = window
        return narrow


class GatheredAttention:
    """Attention of one new token per row: row b reads the first `lengths[b]` keys of its `pages[b]` (B, n).

    Rows are taken in order of their length, as many at once as `GATHERED_TOKENS` allow; their pages are gathered and
    padded to the longest row. With a `window`, only the last so many keys are read.
    """

    def __init__(
        self, pages: np.ndarray, lengths: np.ndarray, page_size: int, device: torch.device, *, window: int | None = None
    ) -> None:
        self._made_of = pages, lengths, page_size, device
        starts = np.zeros_like(lengths)
        if window is not None:
            first = np.maximum(0, lengths - window) // page_size  # pages before it are not read
            count = -(-int((lengths - first * page_size).max()) // page_size)
            columns = np.minimum(first[:, None] + np.arange(count), pages.shape[1] - 1)
            pages, lengths = np.take_along_axis(pages, columns, axis=1), lengths - first * page_size
            starts = np.maximum(0, lengths - window)
        order = np.argsort(-lengths, kind="stable")
        self.order, self.inverse = (sent(index, device) for index in (order, np.argsort(order)))
        self.groups = [
            _padded(pages[rows], starts[rows], lengths[rows], page_size, device)
            for rows in _groups(order, lengths, page_size)
        ]

    def within(self, window: int) -> GatheredAttention:
        """The attention to the last `window` keys alone."""
        return GatheredAttention(*self._made_of, window=window)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """`query` (B, kv_heads, sharing, D), `keys` and `values` [kv_heads, pages, page_size, D] -> as query."""
        queries = query.index_select(0, self.order).split([len(bias) for _, bias in self.groups])
        parts = []
        for one, (pages, bias) in zip(queries, self.groups, strict=True):
            own_keys, own_values = (
                read_pages(tensor, pages).unflatten(1, (len(one), -1)) for tensor in (keys, values)
            )  # (kv_heads, rows, L, D)
            scores = one.transpose(0, 1) @ own_keys.transpose(-1, -2)  # (kv_heads, rows, sharing, L)
            shares = (scores.float().mul_(scale) + bias).softmax(dim=-1)
            parts.append((shares.to(values.dtype) @ own_values).transpose(0, 1))
        return torch.cat(parts).index_select(0, self.inverse)


def _groups(order: np.ndarray, lengths: np.ndarray, page_size: int) -> Iterator[np.ndarray]:
    """`order` (rows, by falling length) in parts that are gathered at once."""
    first = 0
    while first < len(order):
        padded = -(-int(lengths[order[first]]) // page_size) * page_size
        stop = first + max(1, GATHERED_TOKENS // padded)
        yield order[first:stop]
        first = stop


def _padded(
    pages: np.ndarray, starts: np.ndarray, lengths: np.ndarray, page_size: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The pages (rows * n) of rows that are gathered at once, and what hides the padding (rows, 1, n * page_size)."""
    count = -(-int(lengths.max()) // page_size)
    at = np.arange(count * page_size)
    hidden = (at < starts[:, None]) | (at >= lengths[:, None])
    bias = np.where(hidden, -np.inf, 0.0).astype(np.float32)[:, None]
    return sent(pages[:, :count].reshape(-1), device), sent(bias, device)


class KernelAttention(Windowed):
    """Attention of one new token per row by our kernels, which read the keys where they are, and those of pages that
    rows share once: `packed` is on the device what `pack_parts` returns for `rows` rows of `pages` pages."""

    def __init__(self, packed: Tensor, rows: int, pages: int) -> None:
        edge = rows * (2 + pages)
        self.table, self.jobs = packed[:edge].view(rows, -1), packed[edge:].view(-1, 3)

    @staticmethod
    def of(pages: np.ndarray, lengths: np.ndarray, page_size: int, device: torch.device) -> KernelAttention:
        """The attention of row b to the first `lengths[b]` keys of its `pages[b]` (B, n)."""
        return KernelAttention(sent(pack_parts(pages, lengths, page_size), device), *pages.shape)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float, output: Tensor | None = None) -> Tensor:
        """`query` (B, kv_heads, sharing, D), `keys` and `values` [kv_heads, pages, page_size, D] -> as query; fills
        `output`, if given."""
        from sleuth.kernels.attention_kernels import attend_by_pages  # needs Triton, which comes with torch for cards

        return attend_by_pages(query, keys, values, self.table, self.jobs, scale, self.window or NO_WINDOW, output)


def read_pages(tensor: Tensor, pages: Tensor) -> Tensor:
    """[kv_heads, pages, page_size, D] -> the tokens of `pages` (n) in a row: (kv_heads, n * page_size, D)."""
    return tensor.index_select(1, pages).flatten(1, 2)


class ChunkwiseAttention(Windowed):
    """Causal attention of prefill chunks, one call for each: chunk c has the tokens from `starts[c]` to `stops[c]` of a
    sequence in `pages[c]` (C, n)."""

    def __init__(
        self, pages: np.ndarray, starts: np.ndarray, stops: np.ndarray, page_size: int, device: torch.device
    ) -> None:
        self.page_size = page_size
        self.starts, self.stops = starts.tolist(), stops.tolist()
        self.pages = [sent(row[: -(-stop // page_size)], device) for row, stop in zip(pages, self.stops, strict=True)]

    def for_last_tokens(self) -> ChunkwiseAttention:
        """The attention of each chunk's last token alone."""
        narrow = copy.copy(self)
        narrow.starts = [stop - 1 for stop in self.stops]
        return narrow

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """`query` (T, kv_heads, sharing, D) of the chunks' tokens in a row, `keys` and `values` [kv_heads, pages,
        page_size, D] -> as query."""
        queries = query.split([stop - start for start, stop in zip(self.starts, self.stops, strict=True)])
        parts = []
        for one, pages, start, stop in zip(queries, self.pages, self.starts, self.stops, strict=True):
            skipped = 0 if self.window is None else max(0, start + 1 - self.window) // self.page_size
            before = skipped * self.page_size
            own_keys, own_values = (
                read_pages(tensor, pages[skipped:])[:, : stop - before] for tensor in (keys, values)
            )
            if self.window is None or self.window >= stop:
                parts.append(_attend_chunk(one, own_keys, own_values, start, scale))
            else:
                parts.append(_attend_window(one, own_keys, own_values, start - before, self.window, scale))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_chunk(query: Tensor, keys: Tensor, values: Tensor, start: int, scale: float) -> Tensor:
    """Causal attention of a prefill chunk whose first token is at position `start`: `query` (n, kv_heads, sharing, D),
    `keys` and `values` (kv_heads, L, D) -> as query."""
    query = query.permute(1, 2, 0, 3)
    keys, values = (tensor[:, None].expand(-1, query.shape[1], -1, -1) for tensor in (keys, values))
    if keys.device.type != "cpu" or keys.shape[-1] != values.shape[-1]:
        bias = causal_lower_right(query.shape[2], keys.shape[2])
        output = F.scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=scale)
        return output.permute(2, 0, 1, 3)
    output, lse = _attend_with_lse(query, keys[:, :, start:], values[:, :, start:], scale, causal=True)
    if start:
        before, before_lse = _attend_with_lse(query, keys[:, :, :start], values[:, :, :start], scale, causal=False)
        share = torch.sigmoid(before_lse - lse)[..., None].to(output.dtype)
        output = torch.lerp(output, before, share)
    return output.permute(2, 0, 1, 3)


def _attend_window(query: Tensor, keys: Tensor, values: Tensor, start: int, window: int, scale: float) -> Tensor:
    """As `_attend_chunk`, to the last `window` keys of each token alone."""
    query = query.permute(1, 2, 0, 3)
    keys, values = (tensor[:, None].expand(-1, query.shape[1], -1, -1) for tensor in (keys, values))
    at = torch.arange(keys.shape[2], device=keys.device)
    own = at[start:, None]
    seen = (at <= own) & (at > own - window)  # (n, L)
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=seen, scale=scale).permute(2, 0, 1, 3)


def _attend_with_lse(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """(b, h, n, D) queries, (b, h, L, D) keys and values on a CPU -> output, log-sum-exp (b, h, n)."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, keys, values, 0.0, causal, scale=scale)


class PromptAttention(Windowed):
    """Causal attention of the tokens from `starts[c]` to `stops[c]` of a sequence in `pages[c]` (C, n), for all C at
    once, by our kernel, which reads the keys where they are."""

    def __init__(
        self, pages: np.ndarray, starts: np.ndarray, stops: np.ndarray, page_size: int, device: torch.device
    ) -> None:
        self._made_of = pages, stops, page_size, device
        self._starts, self._stops = starts, stops
        self._packed: Tensor | None = None

    def for_last_tokens(self) -> PromptAttention:
        """The attention of each sequence's last token alone."""
        pages, stops, page_size, device = self._made_of
        return PromptAttention(pages, stops - 1, stops, page_size, device)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float, output: Tensor | None = None) -> Tensor:
        """`query` (T, kv_heads, sharing, D) of the tokens in a row, `keys` and `values` [kv_heads, pages, page_size, D]
        -> as query; fills `output`, if given."""
        from sleuth.kernels.attention_kernels import attend_to_prompts, tile_tokens  # needs Triton

        pages, *_, device = self._made_of
        if self._packed is None:
            tiles = tiles_of(self._starts, self._stops, tile_tokens(query.dtype, query.shape[2]))
            self._packed = sent(
                np.concatenate([pages.ravel(), tiles.ravel()], dtype=np.int32, casting="unsafe"), device
            )
        table, tiles = self._packed[: pages.size].view(pages.shape), self._packed[pages.size :].view(-1, 4)
        output = query.new_empty(query.shape) if output is None else output
        attend_to_prompts(query, keys, values, table, tiles, scale, self.window, output)
        return output


def tiles_of(starts: np.ndarray, stops: np.ndarray, count: int) -> np.ndarray:
    """The tokens of chunks from `starts` to `stops` (C) in tiles of at most `count`: (J, 4), each tile's chunk, the
    number of its first token among those of all chunks, that token's position, and how many it has; the tiles with most
    keys come first, so that a card does not end with a long one."""
    tiles = -(-(stops - starts) // count)
    chunk = np.repeat(np.arange(len(starts)), tiles)
    before = count * (np.arange(len(chunk)) - np.repeat(np.cumsum(tiles) - tiles, tiles))  # tokens in the chunk
    positions = starts[chunk] + before
    first = (np.cumsum(stops - starts) - (stops - starts))[chunk] + before
    packed = np.stack([chunk, first, positions, np.minimum(stops[chunk] - positions, count)], axis=1)
    return packed[np.argsort(-positions, kind="stable")]


@cache
def decode_problem(device: torch.device, dtype: torch.dtype, size: int) -> str | None:
    """Why `KernelAttention` cannot be used for heads of `size` numbers; None if it works: four sequences, of which two
    share pages, are computed and compared with `GatheredAttention`."""

    def error() -> float:
        lengths = np.array([1, PAGE + 4, 10 * PAGE, 7 * PAGE + 1])
        pages = np.random.default_rng(0).permutation(40).astype(np.int32).reshape(4, 10)
        pages[3, :5] = pages[2, :5]
        numbers = _drawn_heads(4, 40, size, device, dtype)
        expected = GatheredAttention(pages, lengths, PAGE, device).attend(*numbers, size**-0.5)
        output = KernelAttention.of(pages, lengths, PAGE, device).attend(*numbers, size**-0.5)
        return (output - expected).abs().max().item()

    return kernel_problem(device, error, KERNEL_TOLERANCE)


@cache
def prefill_problem(device: torch.device, dtype: torch.dtype, size: int) -> str | None:
    """Why `PromptAttention` cannot be used for heads of `size` numbers; None if it works: two small sequences are
    computed and compared with `ChunkwiseAttention`."""

    def error() -> float:
        pages, starts, stops = np.array([[2, 0], [3, 1]], dtype=np.int32), np.array([3, 0]), np.array([PAGE + 4, 5])
        numbers = _drawn_heads(PAGE + 6, 4, size, device, dtype)
        expected = ChunkwiseAttention(pages, starts, stops, PAGE, device).attend(*numbers, size**-0.5)
        output = PromptAttention(pages, starts, stops, PAGE, device).attend(*numbers, size**-0.5)
        return (output - expected).abs().max().item()

    return kernel_problem(device, error, KERNEL_TOLERANCE)


def _drawn_heads(
    tokens: int, pages: int, size: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Random queries of so many tokens, and keys and values in so many pages."""
    generator = torch.Generator(device).manual_seed(0)
    keys, values = torch.randn(2, 2, pages, PAGE, size, device=device, dtype=dtype, generator=generator)
    return torch.randn(tokens, 2, 2, size, device=device, dtype=dtype, generator=generator), keys, values
