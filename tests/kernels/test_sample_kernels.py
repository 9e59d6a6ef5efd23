"""Our kernels for sampling, by Triton's interpreter, beside `sample_rows`."""

from __future__ import annotations

import math

import pytest
from interpreted import interpreted

CASES = {
    "a part": {"rows": 80, "words": 300},
    "words that fill their parts": {"rows": 30, "words": 1024, "part": 256},
    "words that fill no block": {"rows": 40, "words": 1001, "part": 256},
    "one row": {"rows": 1, "words": 777, "part": 128},
    "one word": {"rows": 4, "words": 1},
    "a real vocabulary": {"rows": 5, "words": 151_936, "dtype": "bfloat16"},
    "bf16, in which many are equal": {"rows": 40, "words": 2000, "part": 512, "dtype": "bfloat16"},
    "fp16": {"rows": 30, "words": 500, "part": 128, "dtype": "float16"},
    "temperatures of 0": {"rows": 30, "words": 500, "part": 128, "temperatures": [0]},
    "several likeliest": {"rows": 30, "words": 500, "part": 128, "rounded": True, "temperatures": [0, 1e-46, 1]},
    "tiny temperatures": {"rows": 30, "words": 500, "part": 128, "temperatures": [1e-46, 1e-38, 1e-8, 1e-3]},
    "high temperatures": {"rows": 30, "words": 500, "part": 128, "temperatures": [10, 1e6]},
    "draws at the ends": {"rows": 30, "words": 500, "part": 128, "draws": [0.0, 1 - 2**-53, 1.0, 5e-324]},
    "words that are never drawn": {"rows": 40, "words": 900, "part": 128, "never": 0.9},
    "parts that are never drawn": {"rows": 40, "words": 900, "part": 128, "never": "parts", "draws": [0.0, 0.5, 1.0]},
    "likely words far apart": {"rows": 30, "words": 900, "part": 128, "scale": 60},
    "rows between other numbers": {"rows": 30, "words": 500, "part": 128, "gap": True},
    "columns": {"rows": 30, "words": 500, "part": 128, "transposed": True},
}
NEAR_AN_END = {"draws at the ends", "parts that are never drawn"}

SAMPLE = """
import json, sys
import numpy as np, torch
from sleuth.engines.sampling import raised, sample_rows, uniforms
from sleuth.kernels import sample_kernels

def both(rows, words, part=4096, dtype="float32", temperatures=(1, 0.6, 0, 1.7), draws=None, never=0, scale=3,
         rounded=False, gap=False, transposed=False):
    sample_kernels.PART = part
    generator = torch.Generator().manual_seed(rows + words)
    logits = torch.randn(rows, words, generator=generator) * scale
    if never == "parts":
        logits.view(rows, -1, 90)[:, [0, 2, 3, 4, 9]] = -torch.inf
    elif never:
        logits[:, 1:][torch.rand(rows, words - 1, generator=generator) < never] = -torch.inf
    logits = (logits.round() if rounded else logits).to(getattr(torch, dtype))
    if gap:
        logits = torch.stack([logits, logits * 0 + 50], dim=1)[:, 0]
    if transposed:
        logits = logits.T.contiguous().T
    settings = raised(np.resize(temperatures, rows)), uniforms((3,), rows) if draws is None else np.resize(draws, rows)
    settings = torch.from_numpy(np.stack(settings))
    before = logits.clone()
    tokens, logprobs = sample_kernels.sample_by_parts(logits, *settings)
    assert torch.equal(before, logits)
    plain = sample_rows(logits.float().clone(), *settings)
    heat, draw = (setting[:, None] for setting in settings)
    exact = (logits.double() / torch.where(heat == 0, 1, heat)).log_softmax(-1)
    own = exact.gather(1, tokens.long()[:, None])
    assert (own > -torch.inf).all()
    ends = exact.exp().cumsum(-1).gather(1, tokens.long()[:, None])
    outside = torch.maximum(draw - ends, ends - own.exp() - draw).clamp(min=0)
    outside[(tokens == plain[0]) | (settings[0] == 0)] = 0
    return {"others": int((tokens != plain[0]).sum()), "outside": float(outside.max()),
            "error": float((logprobs - own[:, 0]).abs().max()),
            "apart": float((logprobs - plain[1])[tokens == plain[0]].abs().max())}
"""
CHECK = SAMPLE + "print(json.dumps({name: both(**case) for name, case in json.loads(sys.argv[1]).items()}))"


@pytest.fixture(scope="module")
def samples():
    return interpreted(CHECK, CASES)


@pytest.mark.parametrize("case", CASES)
def test_tokens_and_their_log_probabilities_are_those_of_plain_torch(samples, case):
    """fp32 rounds a probability to seven digits, and the sum of a block as it is added up: only where a draw is as near
    to the end of a block, as those that are nearly 1 are, may the next token be found."""
    difference = samples[case]
    assert difference["others"] == 0 or case in NEAR_AN_END
    assert difference["outside"] < 1e-6
    assert difference["error"] < 3e-6
    assert difference["apart"] < 1e-5


def test_draws_pass_the_whole_vocabulary_in_its_order():
    """Draws evenly apart: as many of each token as it is likely, in rising order."""
    tokens = interpreted(
        SAMPLE
        + """
sample_kernels.PART = 128
logits = torch.linspace(-1, 1, 150)
settings = torch.ones(600, dtype=torch.float64), (torch.arange(600).double() + 0.5) / 600
tokens = sample_kernels.sample_by_parts(logits.expand(600, 150), *settings)[0]
expected = torch.searchsorted(logits.double().softmax(0).cumsum(0), settings[1], right=True)
print(json.dumps([tokens.tolist(), expected.tolist()]))
"""
    )
    assert tokens[0] == tokens[1] == sorted(tokens[0])
    assert len(set(tokens[0])) == 150


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_logits_that_are_not_finite_have_no_log_probability_and_a_token_that_exists(temperature):
    tokens, logprobs = interpreted(
        SAMPLE
        + """
sample_kernels.PART = 128
logits = torch.randn(6, 500)
logits[0, 3] = logits[1, 499] = logits[2] = torch.nan
logits[3, 200] = torch.inf
logits[4] = -torch.inf
settings = torch.tensor([[json.loads(sys.argv[1])] * 6, [0.4] * 6], dtype=torch.float64)
print(json.dumps(sample_kernels.sample_by_parts(logits, *settings).tolist()))
""",
        temperature,
    )
    assert all(map(math.isnan, logprobs[:5]))
    assert math.isfinite(logprobs[5])
    assert all(0 <= token < 500 for token in tokens)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_that_differ_from_plain_torch_are_not_used(dtype):
    problems = interpreted(
        """
import json, sys, torch
from types import SimpleNamespace
from sleuth.engines.sampling import LOGPROB_TOLERANCE, sampling_error
from sleuth.kernels import sample_kernels
from sleuth.kernels.device import kernel_problem

def error():
    return sampling_error(torch.device("cpu"), getattr(torch, json.loads(sys.argv[1])))

def problem():
    return kernel_problem(SimpleNamespace(type="cuda"), error, LOGPROB_TOLERANCE)

def fails(*given):
    raise ValueError("PTX was compiled for another card\\nand more")

def off(tokens, logprobs):
    return lambda *given: ours(*given) + torch.tensor([[tokens], [logprobs]])

problems, ours = [problem()], sample_kernels.sample_by_parts
for wrong in (fails, off(1, 0), off(0, 0.25), off(0, torch.nan)):
    sample_kernels.sample_by_parts = wrong
    problems.append(problem())
print(json.dumps(problems))
""",
        dtype,
    )
    assert problems[:2] == [None, "PTX was compiled for another card"]
    assert problems[2:] == [f"its output is off by {error}" for error in ("inf", "0.25", "nan")]


def test_a_call_is_two_launches_and_no_operator_of_torch():
    launched = interpreted(
        """
import json, torch
from fake_card import Launches
from sleuth.kernels import sample_kernels

class Kernel:
    def __getitem__(self, grid):
        grids.append(grid)
        return lambda **arguments: None

grids = []
sample_kernels._sum_part = sample_kernels._find_token = Kernel()
logits, settings = torch.zeros(256, 151_936, dtype=torch.bfloat16), torch.zeros(2, 256, dtype=torch.float64).unbind()
with Launches() as launches:
    sample_kernels.sample_by_parts(logits, *settings)
print(json.dumps([grids, launches.count]))
"""
    )
    assert launched == [[[38, 256], [256]], 0]
