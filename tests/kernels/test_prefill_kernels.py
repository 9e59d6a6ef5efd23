"""Our kernel for the tokens of prompts, by Triton's interpreter."""

from __future__ import annotations

import pytest
from interpreted import interpreted

CASES = {
    "whole prompts": {"chunks": [[0, 1], [0, 70], [0, 64]], "sharing": 2},
    "parts of prompts": {"chunks": [[63, 130], [5, 6], [64, 128]], "sharing": 3, "size": 24},
    "small pages": {"chunks": [[0, 40], [33, 90]], "page": 16, "sharing": 7, "size": 80},
    "a window": {"chunks": [[0, 150], [100, 170]], "window": 20, "sharing": 2},
    "half precision": {"chunks": [[0, 100], [100, 170]], "size": 128, "sharing": 8, "dtype": "float16"},
    "last tokens": {"chunks": [[69, 70], [0, 1]], "sharing": 20},
}

CHECK = """
import json, sys
import numpy as np, torch
from sleuth.engines.local.paged_attention import PromptAttention

def error(chunks, sharing=1, size=16, page=64, window=None, dtype="float32"):
    generator, heads, (starts, stops) = torch.Generator().manual_seed(0), 2, np.array(chunks).T
    each = -(-stops.max() // page)
    pages = np.random.default_rng(0).permutation(len(chunks) * each).astype(np.int32).reshape(len(chunks), each)
    like = {"generator": generator, "dtype": getattr(torch, dtype)}
    keys, values = torch.randn(2, heads, pages.size, page, size, **like)
    query = torch.randn(int((stops - starts).sum()), heads, sharing, size, **like)
    attention = PromptAttention(pages, starts, stops, page, torch.device("cpu"))
    attention = attention if window is None else attention.within(window)
    output, worst = attention.attend(query, keys, values, 0.3), 0.0
    for number, part in enumerate(zip(query.split((stops - starts).tolist()), output.split((stops - starts).tolist()))):
        asked, got = part
        held = (one[:, pages[number]].flatten(1, 2)[:, : stops[number]].double() for one in (keys, values))
        own_keys, own_values = held
        at = torch.arange(stops[number])
        behind = at[starts[number] :, None] - at
        hidden = (behind < 0) | (behind >= (window or 2**30))
        scores = torch.einsum("thgd,hld->thgl", asked.double(), own_keys) * 0.3
        shares = scores.masked_fill(hidden[:, None, None], float("-inf")).softmax(-1)
        worst = max(worst, float((got - torch.einsum("thgl,hld->thgd", shares, own_values)).abs().max()))
    return worst

print(json.dumps({name: error(**case) for name, case in json.loads(sys.argv[1]).items()}))
"""


@pytest.fixture(scope="module")
def errors():
    return interpreted(CHECK, CASES)


@pytest.mark.parametrize("case", CASES)
def test_a_token_attends_to_the_keys_up_to_itself(errors, case):
    """The largest differences to a softmax in fp64: fp32 sums of scores about 5; fp16 rounds shares to 3 digits."""
    assert errors[case] < (2e-3 if case == "half precision" else 1e-5)
