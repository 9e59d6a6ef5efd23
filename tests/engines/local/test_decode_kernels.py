"""Our kernels for pages, by Triton's interpreter."""

from __future__ import annotations

import pytest
from interpreted import interpreted

CASES = {
    "one part": {"lengths": [1, 70, 200], "sharing": 2, "size": 16},
    "several parts": {"lengths": [5, 512, 513, 1300], "sharing": 3, "size": 24},
    "a window within a part": {"lengths": [5, 513, 1300], "window": 40},
    "a window over parts": {"lengths": [5, 600, 1100], "window": 515, "sharing": 20},
    "small pages": {"lengths": [33, 600], "page": 16, "sharing": 8, "size": 80},
    "half precision": {"lengths": [600, 1100], "size": 128, "dtype": "float16"},
    "queries that other numbers lie between": {"lengths": [3, 90], "sharing": 2, "gap": True},
}

CHECK = """
import json, sys
import numpy as np, torch
from sleuth.kernels.decode_kernels import attend_by_pages

def error(lengths, sharing=1, size=16, page=64, window=2**30, dtype="float32", gap=False):
    generator, rows, heads = torch.Generator().manual_seed(0), len(lengths), 2
    each = -(-max(lengths) // page)
    pages = torch.from_numpy(np.random.default_rng(0).permutation(rows * each).astype(np.int32).reshape(rows, each))
    like = {"generator": generator, "dtype": getattr(torch, dtype)}
    keys, values = torch.randn(2, heads, rows * each, page, size, **like)
    query = torch.randn(heads, sharing, rows, size, **like).permute(2, 0, 1, 3)
    packed = torch.cat([pages, torch.tensor(lengths, dtype=torch.int32)[:, None]], dim=1)
    query = query if gap else query.contiguous()
    output = attend_by_pages(query, keys, values, packed[:, :-1], packed[:, -1], max(lengths), 0.3, window)
    worst = 0.0
    for row, length in enumerate(lengths):
        seen = slice(max(0, length - window), length)
        own_keys, own_values = (one[:, pages[row].long()].flatten(1, 2)[:, seen].double() for one in (keys, values))
        shares = (torch.einsum("hgd,hld->hgl", query[row].double(), own_keys) * 0.3).softmax(-1)
        expected = torch.einsum("hgl,hld->hgd", shares, own_values)
        worst = max(worst, float((output[row] - expected).abs().max()))
    return worst

print(json.dumps({name: error(**case) for name, case in json.loads(sys.argv[1]).items()}))
"""


@pytest.fixture(scope="module")
def errors():
    """The largest differences to a softmax in fp64."""
    return interpreted(CHECK, CASES)


@pytest.mark.parametrize("case", CASES)
def test_a_token_attends_to_the_keys_of_its_pages(errors, case):
    """fp32 sums of numbers about 1; fp16 rounds shares and outputs to 3 digits."""
    assert errors[case] < (2e-3 if case == "half precision" else 2e-6)
