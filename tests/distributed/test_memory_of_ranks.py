"""What a rank holds, as the plan reckons it from one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sleuth.plan.plan import rank_memory
from sleuth.plan.probe import read_probe
from sleuth.recipe import load_recipe
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
def test_the_peak_of_a_rank_falls_as_planned(tmp_path: Path) -> None:
    recipe = tmp_path / "wide.toml"
    recipe.write_text(RECIPE)
    for world in (1, 2, 4):
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
        command = [*launcher, "-m", "--", "sleuth", "train", str(recipe), "--run", str(tmp_path / str(world))]
        subprocess.run(command, check=True, capture_output=True, timeout=600, env=os.environ | PROMPTLY)
    probe = read_probe(load_recipe(recipe), tmp_path / "1")
    print(f"one process: measured {probe.costs['supervised'].host_memory:,}")
    for world in (2, 4):
        planned = rank_memory(load_recipe(recipe), probe, world)
        costs = Manifest(tmp_path / str(world) / "manifest.json").costs()["supervised"]
        first, *others = [host for host, _ in costs["ranks_memory_bytes"]]
        print(f"{world} ranks: planned {planned.each:,} and {planned.first:,}, measured {others} and {first:,}")
        assert first == pytest.approx(planned.first, rel=0.25)
        for other in others:
            assert other == pytest.approx(planned.each, rel=0.25)
            assert other < probe.costs["supervised"].host_memory
