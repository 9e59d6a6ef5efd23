"""The planned bytes of each phase beside what a process allocates on a CPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sleuth.plan.memory import CPU, total
from sleuth.plan.phases import Machine, Phase, phases_of
from sleuth.plan.shapes import PUBLISHED, read_shape
from sleuth.recipe import load_recipe

SCRIPT = Path(__file__).with_name("allocations.py")
RECIPE = """
name = "measured"
model = "model"
dtype = "{dtype}"

[[stage]]
kind = "grpo"
steps = 2
prompts_per_step = 1
samples_per_prompt = {sequences}
learning_rate = 1e-4
context = {context}
tokens_per_micro_batch = {budget}
gradient_checkpointing = {checkpointed}
data = {{ questions = "q.jsonl" }}
env = {{ kind = "refine", turn_tokens = {sampled} }}
reward = [{{ kind = "citation" }}]
loss = {{ beta = {beta} }}

[[stage]]
kind = "evaluate"
name = "after"
data = {{ questions = "q.jsonl", limit = {sequences} }}
"""
SMALL = {"model_type": "qwen3", "vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 4}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 384}
SMALL |= {"tie_word_embeddings": True}
PROMPTLY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
"""Memory that is given back leaves the process, so that what is measured is what was held."""
RELATIVE, ABSOLUTE = 0.1, 6_000_000
"""How far a peak may be from the plan. A process grows by some megabytes for other reasons."""


def planned(setting: dict[str, Any], folder: Path) -> dict[str, Phase]:
    """The phases that were measured. The first pass of the reference model comes before any gradient."""
    beta = 0.001 if setting["reference"] else 0.0
    values = setting | {"beta": beta, "checkpointed": str(setting["checkpointed"]).lower()}
    (folder / "recipe.toml").write_text(RECIPE.format(**values))
    shape = read_shape(setting["config"], "model")
    machine = Machine(device=CPU, memory=10**12, ranks=1)
    return {phase.name: phase for phase in phases_of(load_recipe(folder / "recipe.toml"), shape, machine)}


def expected(phases: dict[str, Phase]) -> dict[str, int]:
    sums = {name: total(phase.bytes) - phase.bytes["libraries"] for name, phase in phases.items()}
    if "reference pass" in sums:
        sums["reference pass"] -= phases["reference pass"].bytes["gradients"]
    sums["update"] = max(sums["update"], sums.pop("optimiser step"))
    return sums


def measured(setting: dict[str, Any], folder: Path) -> dict[str, int]:
    (folder / "setting.json").write_text(json.dumps(setting))
    command = [sys.executable, str(SCRIPT), str(folder / "setting.json"), str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | PROMPTLY, timeout=1800)
    assert done.returncode == 0, done.stderr[-2000:]
    for name in ("tiny", "model", "tiny-checkpoint", "checkpoint"):
        shutil.rmtree(folder / name)
    return json.loads(done.stdout.splitlines()[-1])


def require_close(setting: dict[str, Any], folder: Path) -> None:
    phases = planned(setting, folder)
    sums, peaks = expected(phases), measured(setting, folder)
    assert sums.keys() == peaks.keys()
    rows = [
        f"{name}: planned {sums[name]:,}, measured {peaks[name]:,} ({peaks[name] / sums[name]:.3f})" for name in sums
    ]
    print("\n".join(rows))
    for name in sums:
        assert peaks[name] == pytest.approx(sums[name], rel=RELATIVE, abs=ABSOLUTE), rows


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("checkpointed", [True, False], ids=["checkpointed", "kept"])
@pytest.mark.slow
def test_a_small_model_with_many_tokens_takes_what_was_planned(dtype: str, checkpointed: bool, tmp_path: Path) -> None:
    """Activations are most of it."""
    setting = {"config": SMALL, "dtype": dtype, "checkpointed": checkpointed, "reference": True, "sampled": 8}
    require_close(setting | {"context": 2048, "budget": 2048, "sequences": 2, "trained": 1024}, tmp_path)


LENGTHS = {"float32": 64, "bfloat16": 16}
"""Tokens of a sequence. Products of bfloat16 numbers take a hundred times as long on most CPUs."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "layers", "dtype", "reference"),
    [
        ("Qwen3-0.6B", None, "float32", False),
        ("Qwen3-0.6B", None, "bfloat16", True),
        ("Qwen2.5-3B", 2, "float32", True),
        ("Qwen2.5-3B", 2, "bfloat16", True),
        ("Qwen3-4B", 2, "float32", False),
        ("Qwen3-4B", 2, "bfloat16", True),
    ],
)
def test_real_widths_take_what_was_planned(
    model: str, layers: int | None, dtype: str, reference: bool, tmp_path: Path
) -> None:
    """Weights and their state are most of it: 11 to 15 GB."""
    config = PUBLISHED[model] | ({"num_hidden_layers": layers} if layers else {})
    setting = {"config": config, "dtype": dtype, "reference": reference, "checkpointed": True, "sequences": 2}
    length = LENGTHS[dtype]
    require_close(setting | {"context": length, "budget": length, "sampled": 2, "trained": 8}, tmp_path)
