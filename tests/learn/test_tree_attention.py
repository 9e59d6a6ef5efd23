from __future__ import annotations

import random

import pytest
import torch
from live_bytes import LiveBytes
from padded import group_rows, whole
from torch.nn.attention.flex_attention import create_block_mask
from transformers import Qwen3Config, Qwen3ForCausalLM

from sleuth.learn import attention
from sleuth.learn.attention import BlockAttention, Branches
from sleuth.learn.batch import Row, collate
from sleuth.learn.logprobs import token_logprobs
from sleuth.learn.prefix_tree import prefix_tree

SHAPE = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "initializer_range": 0.2}


def drawn(kv_heads: int, seed: int = 0, dtype: torch.dtype = torch.float64):
    """A tree of three groups and random queries, keys and values for it: 4 heads of 8."""
    tree = prefix_tree(collate(group_rows(random.Random(seed), groups=3, siblings=5, longest=30)))
    generator = torch.Generator().manual_seed(seed)
    sizes = [(1, 4, len(tree), 8), (1, kv_heads, len(tree), 8), (1, kv_heads, len(tree), 8)]
    return tree, [torch.randn(size, generator=generator, dtype=dtype, requires_grad=True) for size in sizes]


def under_a_dense_mask(tree, query, key, value, scale: float):
    """(1, N, H, D) by the ancestor test on the whole square."""
    sharing = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(sharing, dim=1) for tensor in (key, value))
    at = torch.arange(len(tree))
    visible = (at[None] <= at[:, None]) & (at[:, None] < tree.ends[None])
    weights = (query @ key.transpose(-1, -2) * scale).masked_fill(~visible, float("-inf")).softmax(-1)
    return (weights @ value).transpose(1, 2)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("max_mask_tokens", [0, 5, 128])
def test_every_token_attends_to_its_own_path_only(monkeypatch, kv_heads, max_mask_tokens):
    monkeypatch.setattr("sleuth.learn.attention.MAX_MASK_TOKENS", max_mask_tokens)
    tree, tensors = drawn(kv_heads)
    ours = BlockAttention.apply(*tensors, Branches(tree, torch.float64).blocks, 0.3)
    plain = under_a_dense_mask(tree, *tensors, 0.3)
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)
    arrived = torch.randn(ours.shape, dtype=torch.float64)
    for mine, theirs in zip(
        torch.autograd.grad(ours, tensors, arrived), torch.autograd.grad(plain, tensors, arrived), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-11)


BLOCK_TENSORS = [
    f"{full}{side}_{what}" for full in ("", "full_") for side in ("kv", "q") for what in ("num_blocks", "indices")
]


@pytest.mark.parametrize("longest", [1, 40, 700])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_block_mask_of_a_tree_is_that_of_its_dense_mask(longest, seed):
    """Trees of 2 to about 5,000 tokens, in blocks that see all, some or nothing of another; also at exactly a multiple
    of the block."""
    whole_tree = prefix_tree(collate(group_rows(random.Random(seed), groups=3, siblings=5, longest=longest)))
    for size in {len(whole_tree), len(whole_tree) // 128 * 128 or 1}:
        ends = whole_tree.ends[:size].clamp(max=size)
        ours = attention.ancestor_block_mask(ends)
        dense = create_block_mask(attention.ancestor_mask_mod(ends), None, None, size, size, device="cpu")
        for name in BLOCK_TENSORS:
            mine, theirs = getattr(ours, name), getattr(dense, name)
            assert mine.dtype == theirs.dtype
            assert torch.equal(mine, theirs), name
            assert mine.is_contiguous(), name
        assert (ours.seq_lengths, ours.BLOCK_SIZE) == (dense.seq_lengths, dense.BLOCK_SIZE)


def test_the_block_mask_of_65_536_tokens_takes_megabytes():
    """The dense mask is 4 GB, and building the blocks from it takes several of it."""
    row = [7] * 1_024
    rows = [Row(tokens=(*row, *[at] * 504), trained=(True,) * 1_528) for at in range(128)]
    ends = prefix_tree(collate(rows)).ends
    assert len(ends) == 65_536
    with LiveBytes() as held:
        mask = attention.ancestor_block_mask(ends)
    assert mask.shape == (1, 1, 65_536, 65_536)
    assert held.peak < 40 * 512**2, "bytes for each pair of blocks"


def long_row(tokens: int) -> Row:
    return Row(tokens=tuple(range(tokens)), trained=(False, *[True] * (tokens - 1)), advantage=1.0)


def test_the_model_keeps_its_own_attention_afterwards():
    model = Qwen3ForCausalLM(Qwen3Config(**SHAPE, num_attention_heads=2, num_key_value_heads=1, head_dim=8)).eval()
    before = model.config._attn_implementation
    token_logprobs(model, whole(collate([long_row(5)])))
    assert model.config._attn_implementation == before


def test_bfloat16_stays_near_fp32():
    model = Qwen3ForCausalLM(Qwen3Config(**SHAPE, num_attention_heads=4, num_key_value_heads=2, head_dim=8)).eval()
    batch = collate(group_rows(random.Random(1), groups=2, siblings=4, longest=20))
    exact = token_logprobs(model, whole(batch))[0]
    rough = token_logprobs(model.to(torch.bfloat16), whole(batch))[0]
    assert (exact - rough).abs().max() < 0.3, "bfloat16 has 8 bits: 0.4 % a product, over two layers of large weights"
