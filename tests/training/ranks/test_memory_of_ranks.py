"""What a rank holds falls with their number."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from processes import on_ranks

from sleuth.ranks import Ranks
from sleuth.retrieval.quantising import quantise
from sleuth.retrieval.vectors import FlatWriter, Hits, load_faiss, open_search
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
WIDTH = 64


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


def shares(ranks: Ranks, files: Sequence[Path]) -> list[tuple[int, int, list[Hits]]]:
    """Of each file of vectors: bytes of memory that this rank has of it, as one of those that share them, bytes that no
    file backs and that it has gained, and what it found."""
    load_faiss()
    queries, found = np.random.default_rng(7).normal(size=(16, WIDTH)).astype(np.float32), []
    for file in files:
        before = unbacked()
        search = open_search(file)
        hits = [sorted(one) for one in search.search(queries, 3)]
        ranks.all_gather([ranks.rank])  # all have read it
        found.append((proportional(file), unbacked() - before, hits))
        ranks.all_gather([ranks.rank])  # and none has closed it
    return found


def proportional(file: Path) -> int:
    """Bytes of the file's pages in the memory of this process, each divided by how many processes map it."""
    size, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, *rest = line.split()
        ours = line.endswith(f" {file}") if not key.endswith(":") else ours
        size += 1024 * int(rest[0]) if ours and key == "Pss:" else 0
    return size


def unbacked() -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon")]
    return 1024 * int(line.split()[1])


@pytest.mark.ranks
def test_ranks_of_a_machine_share_the_memory_of_an_index(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    flat, quantised = tmp_path / "flat.faiss", tmp_path / "quantised.faiss"
    writer = FlatWriter(flat, WIDTH)
    writer.append(np.random.default_rng(0).normal(size=(60_000, WIDTH)).astype(np.float32))
    writer.close()
    quantise(flat, quantised, "ivf-sq8")
    first, second = on_ranks(2, shares, [flat, quantised])
    for file, (one, grown, hits), (other, other_grown, other_hits) in zip(
        (flat, quantised), first, second, strict=True
    ):
        size = file.stat().st_size
        print(f"{file.name}: {size:,} bytes; of two ranks {one:,} and {other:,}, and {grown:,} that no file backs")
        assert 0.8 * size < one + other < 1.1 * size
        assert max(grown, other_grown) < 0.3 * size
        assert hits == other_hits
