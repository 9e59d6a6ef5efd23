"""What a rank holds falls with their number."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sleuth.runs.manifest import Manifest

RECIPE = """
name = "wide"

[[stage]]
kind = "supervised"
steps = 1
rows_per_step = 2
learning_rate = 1e-4
tokens_per_micro_batch = 512
data = { kind = "world_text", people = 50, mix = { reading = 1.0 } }
init = { layers = 8, width = 640, heads = 8, kv_heads = 8, head_dim = 80, mlp = 2560, context = 512 }
"""
PROMPTLY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
"""Memory that is given back leaves the process, so that what is measured is what was held."""


@pytest.mark.slow
def test_the_peak_of_a_rank_falls_with_their_number(tmp_path):
    recipe = tmp_path / "wide.toml"
    recipe.write_text(RECIPE)
    costs = {}
    for world in (1, 2, 4):
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
        command = [*launcher, "-m", "--", "sleuth", "train", str(recipe), "--run", str(tmp_path / str(world))]
        subprocess.run(command, check=True, capture_output=True, timeout=600, env=os.environ | PROMPTLY)
        costs[world] = Manifest(tmp_path / str(world) / "manifest.json").read()["costs"]["supervised"]
    alone = costs[1]["host_memory_bytes"]
    two, four = ([host for host, _ in costs[world]["ranks_memory_bytes"]] for world in (2, 4))
    print(f"one process {alone:,}; the first and the others of two {two}, of four {four}")
    assert max(four[1:]) < 0.9 * two[1] < 0.9 * 0.9 * alone
    assert four[0] < two[0] < alone
