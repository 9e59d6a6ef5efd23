"""`python -m benchmarks.ranks_killed`: a run on two ranks of which one is killed ten times, by torchrun and by Ray.

The launcher restarts the ranks each time. A seed draws the moments of the kills: a number of written steps, and then a
fraction of a step's time, which may fall into loading, rollout, update or save. The same run without kills is compared
with it byte by byte: weights, optimiser state, episodes and figures.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.tiny_run import BASE, CONTEXT, rows
from sleuth.retrieval.bm25 import build_index
from sleuth.runs.checkpoints import checkpoints_in, step_of
from sleuth.world.write_world import write_world

RECIPE = """
name = "killed"
model = "{base}"
seed = 0

[[stage]]
kind = "grpo"
steps = {steps}
prompts_per_step = 4
samples_per_prompt = 8
learning_rate = 1e-4
slots = 32
context = {context}
tokens_per_micro_batch = 512
save_every = 3
keep = 100
probe_prompts = 0
data = {{ questions = "{world}/qa_train.jsonl" }}
env = {{ kind = "search", dialect = "sleuth", prompt = "plain", index = "{world}/index" }}
reward = [{{ kind = "answer" }}, {{ kind = "format", weight = 0.2 }}]
loss = {{ beta = 0.05 }}
credit = {{ kind = "search_gain", margin = 1.0, penalty = 0.2 }}
"""
RANKS = 2
TIMEOUT = 1200.0
"""Seconds to wait for restarted ranks, also on a busy machine."""
LOOK, SEEK = 0.01, 0.1

Command = Callable[[Sequence[str], int], list[str]]
"""The command of `sleuth train` with these arguments on the ranks, and the allowed number of restarts."""


def torchrun(arguments: Sequence[str], restarts: int) -> list[str]:
    """With the launcher of torch."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    return [*launcher, "--max-restarts", str(restarts), "-m", "--", "sleuth", "train", *arguments]


def ray(arguments: Sequence[str], restarts: int) -> list[str]:
    """With a local Ray."""
    launcher = ["--ray", "local", "--ranks", str(RANKS), "--restarts", str(restarts)]
    return [sys.executable, "-m", "sleuth", "train", *arguments, *launcher]


LAUNCHERS: dict[str, Command] = {"torchrun": torchrun, "ray": ray}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """The kill of rank `rank`, the fraction `late` of a step's time after `steps` steps were written."""

    rank: int
    steps: int
    late: float


def main() -> int:
    """Print a table for each launcher, or one JSON object; exit status 0 if all bytes are equal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks_killed", description=__doc__)
    parser.add_argument("--launcher", choices=LAUNCHERS, action="append", help="one of them alone")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the tables")
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory(prefix="sleuth-bench-") as name:
        recipe = write_recipe(Path(name), options.steps)
        for launcher in options.launcher or LAUNCHERS:
            kills = drawn(options.kills, options.steps, options.seed)
            found[launcher] = compared(Path(name) / launcher, recipe, LAUNCHERS[launcher], kills)
            if not options.json:
                show(launcher, found[launcher])
    if options.json:
        print(json.dumps(found))
    return int(any(one["differ"] for one in found.values()))


def write_recipe(folder: Path, steps: int) -> Path:
    """A world of 200 people with its index, and a recipe of `steps` steps in it."""
    world, recipe = folder / "world", folder / "recipe.toml"
    write_world(world, seed=0, people=200)
    build_index(world / "corpus.jsonl", world / "index")
    recipe.write_text(RECIPE.format(base=BASE, world=world, steps=steps, context=CONTEXT))
    return recipe


def drawn(count: int, steps: int, seed: int) -> list[Kill]:
    """The kills in the order of their moments, all before the last step begins."""
    draw = random.Random(seed)
    moments = sorted(draw.uniform(0, steps - 1) for _ in range(count))
    return [Kill(rank=draw.randrange(RANKS), steps=int(moment), late=moment % 1) for moment in moments]


def compared(folder: Path, recipe: Path, launcher: Command, kills: list[Kill]) -> dict[str, Any]:
    """The result of a run without kills, one with all of them, and the files in which they differ."""
    seconds = {"whole": run(folder / "whole", recipe, launcher, [], 0.0)[1]}
    step_seconds = fmean(row["seconds_rollout"] + row["seconds_update"] for row in rows(folder / "whole"))
    fallen, seconds["killed"] = run(folder / "killed", recipe, launcher, kills, step_seconds)
    whole, killed = written(folder / "whole"), written(folder / "killed")
    return {
        "kills": fallen,
        "files": len(whole),
        "differ": sorted(name for name in whole | killed if whole.get(name) != killed.get(name)),
        "step_seconds": round(step_seconds, 2),
        "seconds": seconds,
    }


def run(
    folder: Path, recipe: Path, launcher: Command, kills: list[Kill], step_seconds: float
) -> tuple[list[dict[str, Any]], float]:
    """Trains to the end with these kills; returns the moment of each, and the total seconds."""
    folder.parent.mkdir(exist_ok=True)
    started = time.monotonic()
    first, fallen = 0, []
    with open(folder.with_suffix(".txt"), "w") as said:
        command = launcher([str(recipe), "--run", str(folder)], len(kills))
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        try:
            for kill in kills:
                pids = ranks_of(process, folder, before=first)
                while len(rows_in(folder)) < kill.steps and process.poll() is None:
                    time.sleep(LOOK)
                time.sleep(kill.late * step_seconds)
                os.kill(pids[kill.rank], signal.SIGKILL)
                first, saved = pids[0], [step_of(place) for place in checkpoints_in(folder / "checkpoints")]
                fallen.append({"rank": kill.rank, "steps": len(rows_in(folder)), "saved": max(saved, default=0)})
                print(f"{folder}: kill {len(fallen)} of {len(kills)}: {fallen[-1]}", file=sys.stderr)
            status = process.wait()
        finally:
            process.terminate()
    if status != 0:
        raise RuntimeError(f"the run did not end well:\n{folder.with_suffix('.txt').read_text()[-2000:]}")
    return fallen, round(time.monotonic() - started, 1)


def ranks_of(launcher: subprocess.Popen[Any], folder: Path, before: int = 0) -> list[int]:
    """The processes of the ranks in order, once a new first one (not `before`) writes the run."""
    due, owner, ranks = time.monotonic() + TIMEOUT, "", []
    while launcher.poll() is None and time.monotonic() < due:
        lock = (folder / "lock").read_text().split() if (folder / "lock").exists() else []  # pid 4711 on HOST
        owner = lock[1] if len(lock) > 1 else ""
        ranks = [pid for pid in _below(launcher.pid) if _is_rank(pid)]
        if owner and int(owner) != before and int(owner) in ranks and len(ranks) == RANKS:
            return [int(owner), *(pid for pid in ranks if pid != int(owner))]
        time.sleep(SEEK)
    why = f"it ended with {launcher.poll()}" if launcher.poll() is not None else f"within {TIMEOUT:.0f} s"
    raise RuntimeError(f"{folder}: no {RANKS} ranks train it, {why}: process {owner} writes it, of {ranks}")


def _below(process: int) -> Iterator[int]:
    """All descendants of a process."""
    for thread in Path(f"/proc/{process}/task").glob("*"):
        try:
            children = (thread / "children").read_text().split()
        except OSError:  # it is gone
            continue
        for child in map(int, children):
            yield child
            yield from _below(child)


def _is_rank(process: int) -> bool:
    try:
        called = Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False
    return b"RayTrainWorker" in called or b"\0sleuth\0train\0" in called


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """The number of steps written so far, by complete lines."""
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def written(folder: Path) -> dict[str, bytes]:
    """The outputs of a run: checkpoints, rollouts, and figures other than times."""
    files = [file for file in folder.glob("checkpoints/**/*") if file.is_file() and file.name != "README.md"]
    found = {str(file.relative_to(folder)): file.read_bytes() for file in [*files, *folder.glob("rollouts/*")]}
    figures = [{name: row[name] for name in row if not name.startswith("seconds")} for row in rows(folder)]
    return found | {"metrics.jsonl": json.dumps(figures).encode()}


def show(launcher: str, found: dict[str, Any]) -> None:
    """A row for each kill, and the result."""
    table = Table("kill", "of rank", "steps written", "steps saved", title=launcher, box=box.SIMPLE_HEAD)
    for number, kill in enumerate(found["kills"], 1):
        table.add_row(*map(str, (number, kill["rank"], kill["steps"], kill["saved"])))
    console = Console()
    console.print(table)
    differ = ", ".join(found["differ"]) or "none"
    console.print(f"{launcher}: of {found['files']} files differ: {differ}; a step took {found['step_seconds']} s")
    console.print(f"seconds: {found['seconds']['whole']} whole, {found['seconds']['killed']} with all kills")


if __name__ == "__main__":
    sys.exit(main())
