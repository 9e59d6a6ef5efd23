"""Without numba, as in an image with torch and transformers alone, torch's own paths compute the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BASE = Path(__file__).parents[2] / "models" / "tiny-base"
HIDE = "import sys; sys.modules.update(numba=None, llvmlite=None)\n"
SCRIPT = f"""
import asyncio, json, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from sleuth.engines.local.engine import LocalEngine
from sleuth.learn.batch import Row, collate
from sleuth.learn.losses import PolicyLoss
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy
from sleuth.types import Sampling

model = AutoModelForCausalLM.from_pretrained({str(BASE)!r}, dtype=torch.float32)  # it is stored in bfloat16
tokenizer = AutoTokenizer.from_pretrained({str(BASE)!r})
engine = LocalEngine(model, tokenizer, slots=4, context=128)
prompts = [(*range(40, 100), sample % 2) for sample in range(4)]

async def write():
    settings = [Sampling(max_tokens=12, temperature=at % 3 / 2, key=(0, at)) for at in range(4)]
    return await asyncio.gather(*map(engine.complete, prompts, settings))

written = asyncio.run(write())
rows = [
    Row(tokens=(*prompt, *one.tokens), trained=(*[False] * 61, *[True] * len(one.tokens)), advantage=at - 1.5)
    for at, (prompt, one) in enumerate(zip(prompts, written))
]
policy = Policy(model, Optimisation(steps=1, learning_rate=1e-3))
update = policy.update(collate(rows), PolicyLoss(), budget=256)
print(json.dumps([[one.tokens for one in written], [one.logprobs for one in written], update.loss, update.entropy,
    update.gradient_norm, "numba" in sys.modules and sys.modules["numba"] is not None]))
"""


@pytest.fixture(scope="module")
def results() -> list[list]:
    """What the script prints with numba, and without it."""
    scripts = ["import sys\n" + SCRIPT, HIDE + SCRIPT]
    done = [subprocess.run([sys.executable, "-c", each], capture_output=True, text=True) for each in scripts]
    assert [one.returncode for one in done] == [0, 0], done[1].stderr[-2000:]
    return [json.loads(one.stdout.splitlines()[-1]) for one in done]


@pytest.mark.slow
def test_numba_is_not_needed_to_sample_and_to_train(results):
    assert [result[-1] for result in results] == [True, False]


@pytest.mark.slow
def test_tokens_and_gradients_are_those_of_the_compiled_loops(results):
    (tokens, logprobs, *update), (torch_tokens, torch_logprobs, *torch_update) = results
    assert torch_tokens == tokens
    for ours, torchs in zip(logprobs, torch_logprobs, strict=True):
        assert torchs == pytest.approx(ours, abs=1e-4)
    assert torch_update[:3] == pytest.approx(update[:3], rel=1e-5, abs=1e-6)
