"""`python -m benchmarks.pooled_ranks`: one process and two ranks (gloo) train with the same server.

Both play through `--url`, or through an emulated vLLM that is started for each. Then the recorded episodes of the
ranks' steps are computed again: loss and gradient by one process, and by two ranks, from the same weights.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from benchmarks.served import emulated
from benchmarks.tiny_run import BASE, CONTEXT, exact_match, rows, write_recipe
from sleuth.learn.models import load_model
from sleuth.learn.policy import frozen_copy
from sleuth.ranks import Ranks
from sleuth.recipe import load_recipe
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.runs.rollouts import read_advantages, read_rollouts
from sleuth.training.group import join_ranks
from sleuth.training.learning import batch_of_step, policy_loss_of, policy_of

RANKS = 2
LAUNCHER = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), "-m", "--")


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pooled_ranks", description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--recorded", type=int, default=4, help="steps to compute again (4)")
    parser.add_argument("--url", help="a server of the tiny base model that has a context of 512 tokens")
    parser.add_argument("--in", type=Path, dest="place", help="keep the runs in this folder")
    parser.add_argument("--compute", nargs=2, metavar=("RUN", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compute:
        with join_ranks() as ranks:
            found = gradients(ranks, Path(options.compute[0]), options.recorded)
            if ranks.first:
                torch.save(found, options.compute[1])
        return
    with tempfile.TemporaryDirectory(prefix="sleuth-bench-") as name:
        folder = options.place or Path(name)
        folder.mkdir(exist_ok=True)
        recipe = write_recipe(folder, options.steps)
        seconds = {}
        for side, launcher in sides().items():
            seconds[side] = train(launcher, recipe, folder / side, options.url)
        again = {side: computed(launcher, folder, side, options.recorded) for side, launcher in sides().items()}
        print(json.dumps(compared(folder, again) | {"seconds": seconds}))


def sides() -> dict[str, Sequence[str]]:
    """The launchers of one process and of two ranks."""
    return {"one": (sys.executable, "-m"), "ranks": LAUNCHER}


def train(launcher: Sequence[str], recipe: Path, folder: Path, url: str | None) -> float:
    """Trains in a folder through the server; returns the seconds."""
    with nullcontext((url, None)) if url else emulated("vllm", BASE, context=CONTEXT) as (server, _):
        engine = f'stage.0.engine={{ urls = ["{server}"] }}'
        started = time.monotonic()
        subprocess.run([*launcher, "sleuth", "train", str(recipe), "--run", str(folder), "--set", engine], check=True)
        return round(time.monotonic() - started, 1)


def computed(launcher: Sequence[str], folder: Path, side: str, steps: int) -> list[tuple[float, torch.Tensor]]:
    """Loss and gradient of the first steps of the ranks' run, by this launcher."""
    out = folder / f"{side}.pt"
    arguments = ["benchmarks.pooled_ranks", "--compute", str(folder / "ranks"), str(out), "--recorded", str(steps)]
    subprocess.run([*launcher, *arguments], check=True)
    return torch.load(out, weights_only=True)


def gradients(ranks: Ranks, run: Path, steps: int) -> list[tuple[float, torch.Tensor]]:
    """Loss and gradient of the recorded episodes of the first steps, at the weights that the run began with."""
    recipe = load_recipe(run / "recipe.toml")
    stage = recipe.stage[0]
    assert isinstance(stage, GrpoRecipe)
    model, _ = load_model(str(BASE), dtype="float32", device="cpu")
    reference = frozen_copy(load_model(str(BASE), dtype="float32", device="cpu")[0]) if stage.loss.beta else None
    policy, found = policy_of(stage, model, reference, ranks), []
    for step in range(1, steps + 1):
        file = run / "rollouts" / f"step-{step:06d}.parquet"
        batch = batch_of_step(read_rollouts(file), read_advantages(file), stage)
        if batch is not None:
            loss, gradient = policy.gradient(batch, policy_loss_of(stage), budget=stage.tokens_per_micro_batch)
            found.append((float(loss), gradient))
    return found


def compared(folder: Path, again: dict[str, list[tuple[float, torch.Tensor]]]) -> dict[str, Any]:
    """Largest relative differences of losses and gradients, and what became of both runs."""
    pairs = list(zip(again["one"], again["ranks"], strict=True))
    return {
        "steps_compared": len(pairs),
        "loss_apart": max(abs(one - other) / abs(one) for (one, _), (other, _) in pairs),
        "gradient_apart": max(float((one - other).norm() / one.norm()) for (_, one), (_, other) in pairs),
        "largest_sampler_learner_kl": {
            side: max(abs(row["sampler_learner_kl"]) for row in rows(folder / side) if row["loss"] is not None)
            for side in again
        },
        "em": {side: exact_match(folder / side) for side in again},
    }


if __name__ == "__main__":
    main()
