"""Attention over a prefix tree on a card: FlexAttention (arXiv:2412.05496), its mask by ancestry, and which kernels and
options it has."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from sleuth.host.threads import to_stderr
from sleuth.kernels.allocator import is_out_of_memory

BLOCK_TOKENS = 128
"""Tokens of FlexAttention's blocks of queries and of keys."""
KERNEL_OPTIONS: dict[tuple[int, int], dict[int, dict[str, Any]]] = {
    (9, 0): {128: {"fwd_BLOCK_M": 64, "fwd_BLOCK_N": 64, "fwd_num_stages": 3, "fwd_num_warps": 4}},
}
"""FlexAttention's options by the compute capability of a card and the numbers of a head, in half precision, where those
of torch's own choice were measured to be slower: on an H200 1.64 ms for a forward pass that takes 1.25."""
FLASH = {"BACKEND": "FLASH"}
"""The option for the kernels of flash-attn-4."""
BLACKWELL = (10, 0)
"""On older cards the backward pass of flash-attn-4 adds in no fixed order, and a run would not continue to the byte."""
FLASH_ERROR = 0.02
"""Relative error of its outputs and gradients at most, where each rounds numbers of 16 bits by up to 0.4 %."""


def flex(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float, *, windowed: bool) -> Tensor:
    """FlexAttention of queries (1, H, N, D) to keys and values (1, kv_heads, N, D): (1, H, N, D). `windowed`: the mask
    has a window, whose length flash-attn-4 cannot read."""
    device, shape = query.device, (query.shape[1], key.shape[1], query.shape[3])
    by_size = KERNEL_OPTIONS.get(_capability(device), {}) if query.dtype.itemsize == 2 else {}
    options = by_size.get(query.shape[3])
    if not windowed and has_flash(device, query.dtype, *shape):
        options = FLASH
    return _compiled_flex()(query, key, value, block_mask=mask, scale=scale, enable_gqa=True, kernel_options=options)


@cache
def _compiled_flex() -> Any:
    return torch.compile(flex_attention, dynamic=True)


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if torch.cuda.is_available() else (0, 0)


@cache
def has_flash(device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, size: int) -> bool:
    """Whether attention of this shape runs by flash-attn-4: where it is installed, on Blackwell or newer, after one try
    in which outputs and gradients of a small tree were those of torch's own kernels."""
    if dtype.itemsize != 2 or _capability(device) < BLACKWELL or not _is_installed():
        return False
    try:
        with ThreadPoolExecutor(1) as alone:  # a checkpoint counts what its own thread saves for the backward pass
            worst = alone.submit(_flash_error, device, dtype, heads, kv_heads, size).result()
        reason = "" if worst <= FLASH_ERROR else f"an error of {worst:.1%}"
    except Exception as error:  # of torch and of the compilers of both: each has its own classes
        if is_out_of_memory(error):
            raise
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    if reason:
        to_stderr(f"attention runs by torch's own kernels and not by flash-attn-4: {reason}")
    return not reason


def _is_installed() -> bool:
    try:
        return find_spec("flash_attn.cute") is not None
    except ImportError:  # no flash_attn at all
        return False


def _flash_error(device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, size: int) -> float:
    """The largest relative error (2-norm) of output and gradients, to those of torch's own kernels, for a trunk of 300
    tokens and two branches."""
    ends = torch.full((640,), 640)
    ends[300:450] = 450
    mask, draw = ancestor_block_mask(ends.to(device)), torch.Generator(device).manual_seed(0)

    def drawn(rows: int) -> Tensor:  # in the layout of a layer's
        return torch.randn(1, len(ends), rows, size, generator=draw, device=device, dtype=dtype).transpose(1, 2)

    inputs, arriving = [drawn(rows).requires_grad_() for rows in (heads, kv_heads, kv_heads)], drawn(heads)
    found = []
    for options in (None, FLASH):
        output = _compiled_flex()(*inputs, block_mask=mask, scale=size**-0.5, enable_gqa=True, kernel_options=options)
        found.append([output, *torch.autograd.grad(output, inputs, arriving)])
    errors = [(ours - theirs).float().norm() / theirs.float().norm() for theirs, ours in zip(*found, strict=True)]
    return torch.stack(errors).max().item()


def ancestor_mask_mod(
    ends: Tensor, positions: Tensor | None = None, window: int | None = None
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """FlexAttention's `mask_mod`, (batch, head, query, key) -> bool: whether the key is on the path of the query, and
    not `window` or more tokens before it."""
    if window is None or positions is None:
        return lambda batch, head, query, key: (key <= query) & (query < ends[key])
    return lambda batch, head, query, key: (
        (key <= query) & (query < ends[key]) & (positions[query] - positions[key] < window)
    )


def ancestor_block_mask(ends: Tensor, positions: Tensor | None = None, window: int | None = None) -> BlockMask:
    """FlexAttention's mask of a tree whose subtrees end at `ends` (N), and whose tokens are at `positions` (N) if there
    is a `window`: that of `create_block_mask`, which holds several bytes for each pair of tokens, computed with memory
    for pairs of blocks of 128 tokens only.

    Since subtrees are contiguous, the last end in a block of keys says which later blocks of queries see any of it, and
    the first end which see all of it. A block sees itself in part. A window hides a block of keys from a block of
    queries if it hides the last of these from the first, and shows all of it if it shows the first to the last.
    """
    size = len(ends)
    rows = -(-size // BLOCK_TOKENS)  # blocks of keys, and of queries
    by_block = F.pad(ends, (0, rows * BLOCK_TOKENS - size)).view(rows, BLOCK_TOKENS)  # 0: no token attends to it
    last, first = by_block.amax(dim=1), by_block.amin(dim=1)
    numbers = torch.arange(rows, device=ends.device)
    query, key = numbers[:, None], numbers[None]
    whole = (key < query) & (first >= (query + 1) * BLOCK_TOKENS)  # (rows, rows)
    partly = ((key < query) & (last > query * BLOCK_TOKENS) | (key == query)) & ~whole
    if window is not None and positions is not None:
        filled = torch.cat([positions, positions[-1:].expand(rows * BLOCK_TOKENS - size)]).view(rows, BLOCK_TOKENS)
        deepest, highest = filled.amax(dim=1), filled.amin(dim=1)
        shown = deepest[:, None] - highest < window
        near = (highest[:, None] - deepest < window) | (key == query)
        whole, partly = whole & shown, (partly | whole & ~shown) & near
    seen = (_in_front(partly), _in_front(whole), _in_front(partly.T), _in_front(whole.T))
    # Not by `from_kv_blocks`, which makes indices on the host: each wait for a card would leave it idle.
    return BlockMask(
        (size, size),
        *(blocks for pair in seen for blocks in pair),
        BLOCK_SIZE=(BLOCK_TOKENS, BLOCK_TOKENS),
        mask_mod=ancestor_mask_mod(ends, positions, window),
    )


def _in_front(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of each row (rows, rows) are true, and their numbers, in order, before those of the others; for
    one batch and one head."""
    counts = blocks.sum(dim=1, dtype=torch.int32)
    # Contiguous: of a transposed matrix the order would be transposed too, and a kernel reads it as if it were not.
    order = blocks.to(torch.uint8).contiguous().argsort(dim=1, descending=True, stable=True).to(torch.int32)
    return counts[None, None], order.contiguous()[None, None]
