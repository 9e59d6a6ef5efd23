"""Our kernels for pages, by Triton's interpreter."""

from __future__ import annotations

import pytest
from interpreted import interpreted

CASES = {
    "one part": {"lengths": [1, 70, 128], "sharing": 2, "size": 16},
    "several parts": {"lengths": [5, 128, 129, 500], "sharing": 3, "size": 24},
    "more parts than are weighed at once": {"lengths": [7, 4200], "heads": 1},
    "a window within a part": {"lengths": [5, 129, 400], "window": 40},
    "a window over parts": {"lengths": [5, 300, 400], "window": 133, "sharing": 20},
    "small pages": {"lengths": [33, 300], "page": 16, "sharing": 8, "size": 80},
    "half precision": {"lengths": [300, 400], "size": 128, "dtype": "float16"},
    "queries that other numbers lie between": {"lengths": [3, 90], "sharing": 2, "gap": True},
    "siblings": {"lengths": [300, 129, 300, 261, 128, 290], "sharing": 2, "shared": 257},
    "siblings in small pages": {"lengths": [300, 140, 290], "page": 16, "sharing": 3, "shared": 256},
    "siblings of many heads": {"lengths": [200, 140, 190], "sharing": 7, "size": 256, "shared": 130},
    "siblings in half precision": {"lengths": [300, 290], "size": 128, "dtype": "bfloat16", "shared": 256},
    "siblings of more heads than a tile has": {"lengths": [200, 140], "sharing": 20, "shared": 130},
    "more siblings than a job has": {"lengths": [130 + number for number in range(11)], "shared": 128, "heads": 1},
    "siblings in windows that begin apart": {"lengths": [300, 180, 390], "window": 150, "shared": 128, "sharing": 2},
}

CHECK = """
import json, sys
import numpy as np, torch
from sleuth.engines.local.paged_attention import NO_WINDOW, KernelAttention

def row_by_row(one, other, dtype):
    "As on matrix units, where a row of a product does not depend on its place, as it does in a BLAS; bf16 too."
    widened = ((a.astype(np.uint32) << 16).view(np.float32) if a.dtype == np.uint16 else a for a in (one, other))
    one, other = (np.ascontiguousarray(a, dtype=dtype) for a in widened)
    return np.stack([row @ other for row in one])

np.matmul = row_by_row  # by which the interpreter multiplies

def check(lengths, sharing=1, size=16, page=64, window=NO_WINDOW, dtype="float32", gap=False, shared=0, heads=2):
    generator, rows = torch.Generator().manual_seed(0), len(lengths)
    each = -(-max(lengths) // page)
    pages = np.random.default_rng(0).permutation(rows * each).astype(np.int32).reshape(rows, each)
    pages[:, : shared // page] = pages[0, : shared // page]
    like = {"generator": generator, "dtype": getattr(torch, dtype)}
    keys, values = torch.randn(2, heads, rows * each, page, size, **like)
    query = torch.randn(heads, sharing, rows, size, **like).permute(2, 0, 1, 3)
    query = query if gap else query.contiguous()

    def attend(rows):
        attention = KernelAttention.of(pages[rows], np.array(lengths)[rows], page, torch.device("cpu"))
        return attention.within(window).attend(query[rows], keys, values, 0.3)

    output, worst = attend(slice(None)), 0.0
    for row, length in enumerate(lengths):
        seen, own = slice(max(0, length - window), length), torch.from_numpy(pages[row]).long()
        own_keys, own_values = (one[:, own].flatten(1, 2)[:, seen].double() for one in (keys, values))
        shares = (torch.einsum("hgd,hld->hgl", query[row].double(), own_keys) * 0.3).softmax(-1)
        expected = torch.einsum("hgl,hld->hgd", shares, own_values)
        worst = max(worst, float((output[row] - expected).abs().max()))
    alone = torch.cat([attend(slice(row, row + 1)) for row in range(len(lengths))])
    return worst, torch.equal(alone.view(torch.uint8), output.view(torch.uint8))

print(json.dumps({name: check(**case) for name, case in json.loads(sys.argv[1]).items()}))
"""


@pytest.fixture(scope="module")
def checked():
    """The largest differences to a softmax in fp64, and whether rows alone have the same bytes, in a process that
    interprets: Triton asks at its import."""
    return interpreted(CHECK, CASES)


@pytest.mark.parametrize("case", CASES)
def test_a_token_attends_to_the_keys_of_its_pages(checked, case):
    """fp32 sums of numbers about 1, and of scores about 5 with the largest heads; fp16 rounds shares and outputs to 3
    digits, bf16 to 2."""
    most = {"half precision": 2e-3, "siblings in half precision": 2e-2, "siblings of many heads": 1e-5}
    assert checked[case][0] < most.get(case, 2e-6)


@pytest.mark.parametrize("case", CASES)
def test_a_sequence_has_the_same_bytes_alone_and_with_siblings(checked, case):
    assert checked[case][1]
