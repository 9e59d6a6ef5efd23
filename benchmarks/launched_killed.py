"""`python -m benchmarks.launched_killed --vllm PATH`: a run that starts a real vLLM, which is killed again and again.

While a step is played, the server is killed (SIGKILL), and its supervisor starts it again. Counted are the episodes
of every step that are lost or repeated, turns that were sampled again, and the distance between sampler and learner.
Beside it, the CPU time of the trainer's process while episodes are played, in steps without a kill.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks.tiny_run import episodes, rows, train, write_recipe
from sleuth.training.rollout_worker import RolloutWorker

GROUPS, SIBLINGS = 8, 8
"""Of a step of the recipe."""


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.launched_killed", description=__doc__)
    parser.add_argument("--vllm", required=True, help="the program, such as .venv-servers/bin/vllm")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--steps-between", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sleuth-bench-") as name:
        folder = Path(name)
        recipe = write_recipe(folder, options.steps)
        played: list[dict[str, float]] = []
        kills: list[float] = []
        killer = threading.Thread(target=kill_servers, args=(folder / "run", options, kills), daemon=True)
        killer.start()
        with patch.object(RolloutWorker, "play", timed(played)):
            seconds = train(
                recipe,
                folder / "run",
                "stage.0.probe_prompts=0",
                "stage.1.data.limit=20",
                launch="vllm",
                command=options.vllm,
            )
        print(json.dumps({"kills": len(kills), "seconds": seconds} | counted(folder / "run", options.steps, played)))


def timed(played: list[dict[str, float]]) -> Any:
    """`RolloutWorker.play`, which also appends its seconds, and those of CPU time, to `played`."""
    play = RolloutWorker.play

    def timed_play(worker: RolloutWorker, step: int) -> Any:
        wall, cpu = time.monotonic(), time.process_time()
        groups = play(worker, step)
        played.append({"wall": time.monotonic() - wall, "cpu": time.process_time() - cpu})
        return groups

    return timed_play


def kill_servers(run: Path, options: argparse.Namespace, kills: list[float]) -> None:
    """Kills the server a moment after a step has begun, `kills` times."""
    metrics = run / "metrics.jsonl"
    for at in range(options.kills):
        due = 1 + at * options.steps_between
        while not metrics.exists() or len(metrics.read_text().splitlines()) < due:
            time.sleep(0.1)
        time.sleep(1.0)  # the next step generates
        for pid in servers_of(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                kills.append(time.monotonic())


def servers_of(trainer: int) -> list[int]:
    """The server processes: children of the supervisors, which are children of the trainer."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    supervisors = {
        pid
        for pid, parent in parents.items()
        if parent == trainer and b"supervisor.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    }
    return [pid for pid, parent in parents.items() if parent in supervisors]


def counted(run: Path, steps: int, played: list[dict[str, float]]) -> dict[str, Any]:
    """Counts of the run, and the trainer's CPU time where no server was killed."""
    lost = twice = 0
    for step in range(1, steps + 1):
        names = Counter(name for name, _ in episodes(run, step))
        lost += GROUPS * SIBLINGS - len(names)
        twice += sum(names.values()) - len(names)
    figures = rows(run)
    calm = [one for one, row in zip(played, figures, strict=True) if not row["turns_redrawn"]]
    return {
        "steps": len(figures),
        "episodes": GROUPS * SIBLINGS * steps,
        "lost": lost,
        "counted_twice": twice,
        "turns_redrawn": sum(row["turns_redrawn"] for row in figures),
        "servers_reloaded": sum(row["servers_reloaded"] for row in figures),
        "largest_sampler_learner_kl": max(abs(row["sampler_learner_kl"]) for row in figures if row["loss"] is not None),
        "seconds_rollout_median": round(median(row["seconds_rollout"] for row in figures), 2),
        "trainer_share_of_a_core": [round(one["cpu"] / one["wall"], 3) for one in calm],
        "trainer_cpu_seconds_a_step": round(median(one["cpu"] for one in calm), 2),
        "trainer_seconds_a_step": round(median(one["wall"] for one in calm), 2),
    }


if __name__ == "__main__":
    main()
