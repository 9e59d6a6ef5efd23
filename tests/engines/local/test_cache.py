from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sleuth.engines.local.cache import PagedCache, bytes_per_token, pages_of
from sleuth.kernels.card_pass import PAGE

STATM = Path("/proc/self/statm")


def put(cache, pages, positions, *, kind=torch.float32, size=4):
    """Writes random keys and values, two heads of `size`, of tokens at `positions` held in `pages`; the layer, and what
    was written."""
    new = torch.randn(2, len(pages), 2, size, dtype=kind)
    return cache.write(0, cache.rows(torch.tensor(pages), torch.tensor(positions), 2), *new), new


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_tokens_are_written_into_their_pages_and_nowhere_else(kind):
    cache = PagedCache(pages=5, page_size=8)
    layer, new = put(cache, [4, 4, 1], [17, 18, 7], kind=kind)
    for tensor, written in zip(layer, new, strict=True):
        assert tensor.shape == (2, 5, 8, 4)
        assert torch.equal(tensor[:, [4, 4, 1], [1, 2, 7]].transpose(0, 1), written)
        assert tensor.count_nonzero() == written.numel()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_pages_are_copied_in_order(kind):
    cache = PagedCache(pages=4, page_size=8)
    cache.copy([(0, 1)])  # nothing was written yet, in any layer
    put(cache, [0, 0, 3], [0, 1, 0], kind=kind)
    before = [tensor.clone() for tensor in cache.layers[0]]
    cache.copy([(0, 1), (1, 2), (3, 0), (2, 3)])
    for tensor, old in zip(cache.layers[0], before, strict=True):
        for target, source in ((1, 0), (2, 0), (0, 3), (3, 0)):
            assert torch.equal(tensor[:, target], old[:, source])


@pytest.mark.skipif(not STATM.exists(), reason="this system does not tell what is resident")
def test_pages_take_no_memory_before_they_are_written_and_none_after_they_are_cleared():
    def resident():
        return int(STATM.read_text().split()[1]) * 4_096

    cache, before = PagedCache(pages=8_192, page_size=64), resident()
    put(cache, [7], [9], size=64)
    keys, values = cache.layers[0]
    assert keys.nbytes + values.nbytes == 2 * 8_192 * 2 * 64 * 64 * 4  # half a gigabyte
    assert resident() - before < 50e6
    keys[:, :1_000] = 1
    assert resident() - before > 30e6
    del keys, values
    cache.clear()
    assert resident() - before < 20e6


def test_the_bytes_of_a_token_are_those_of_its_keys_and_values(make_model):
    model = make_model("qwen3")
    cache, config = PagedCache(pages=3, page_size=16), model.config
    for layer in range(config.num_hidden_layers):
        new = torch.randn(2, 1, config.num_key_value_heads, config.head_dim)
        cache.write(layer, cache.rows(torch.tensor([0]), torch.tensor([0]), config.num_key_value_heads), *new)
    held = sum(tensor.nbytes for layer in cache.layers.values() for tensor in layer)
    assert held == 3 * 16 * bytes_per_token(config, torch.float32)


def test_the_cache_takes_its_budget_and_never_more_than_it_needs():
    def pages(budget, slots=50, token_bytes=1_000 / PAGE):
        """Of a context of two pages of 1,000 bytes."""
        return pages_of(token_bytes, torch.device("cpu"), slots=slots, context=2 * PAGE, cache_memory=budget)

    assert pages("8KB") == 8
    assert pages("1MB") == pages(None) == 100
    assert pages("2%", 10**12) == pytest.approx(2 * pages("1%", 10**12), abs=2)
