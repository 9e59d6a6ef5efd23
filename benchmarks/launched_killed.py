"""`python -m benchmarks.launched_killed --vllm PATH`: a run that starts a real vLLM, which is killed again and again.

In some steps its engine process is killed (SIGKILL), as when memory runs out, in others the server with it: while turns
wait for their first token, while they decode, while the server loads weights, and while the learner computes. At last
the engine is killed in the evaluation. The supervisor starts the server again each time. Printed are, for each kill,
the seconds until the run says something and until a turn comes back; the episodes of every step that are lost or twice,
turns that were sampled again, and the distance between sampler and learner. Beside it, the CPU time of the trainer's
process while episodes are played, in steps without a kill.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import tempfile
import time
from collections import Counter
from contextlib import suppress
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks.tiny_run import episodes, rows, train, write_recipe
from sleuth.engines.remote.http_client import HttpClient
from sleuth.runs.run_folder import RunFolder
from sleuth.training.rollout_worker import RolloutWorker

GROUPS, SIBLINGS = 8, 8
"""Of a step of the recipe."""
QUESTIONS = 20
"""Of the evaluation."""
PLACES = ("first token", "decode", "update", "learner")
VICTIMS = {"engine": b"EngineCore", "server": b""}
"""What the command line of a killed process holds."""
COMPLETIONS, LOAD = "/v1/completions", "/collective_rpc"
FIRST_SAYS = ("pool: no server has answered", "without new weights", "asking again")


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.launched_killed", description=__doc__)
    parser.add_argument("--vllm", required=True, help="the program, such as .venv-servers/bin/vllm")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--kills", type=int, default=8, help="in steps; one more is in the evaluation")
    parser.add_argument("--steps-between", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sleuth-bench-") as name:
        folder = Path(name)
        recipe = write_recipe(folder, options.steps)
        played: list[dict[str, float]] = []
        due = list(product(VICTIMS, PLACES))[: options.kills]
        kills = Kills({2 + at * options.steps_between: one for at, one in enumerate(due)}, options.steps)
        with (
            patch.object(RolloutWorker, "play", kills.playing(timed(played))),
            patch.object(HttpClient, "post", kills.posting(HttpClient.post)),
            patch.object(RunFolder, "say", kills.saying(RunFolder.say)),
        ):
            seconds = train(
                recipe,
                folder / "run",
                "stage.0.probe_prompts=0",
                f"stage.1.data.limit={QUESTIONS}",
                launch="vllm",
                command=options.vllm,
            )
        figures = counted(folder / "run", options.steps, played)
        print(json.dumps({"kills": kills.done, "seconds": seconds} | figures))


class Kills:
    """Kills at places that are `due`, by step: (victim, place). Those `done` have their seconds until the run's first
    line about them and until a turn comes back."""

    def __init__(self, due: dict[int, tuple[str, str]], steps: int) -> None:
        self.done: list[dict[str, Any]] = []
        self._due, self._steps = due | {steps + 1: ("engine", "evaluation")}, steps
        self._step = self._sent = self._back = 0

    def playing(self, play: Any) -> Any:
        """`play`, which counts the turns of a step, and after which the learner computes."""

        def playing(worker: RolloutWorker, step: int) -> Any:
            self._step, self._sent, self._back = step, 0, 0
            groups = play(worker, step)
            self._kill("learner")
            self._sent, self._back, self._step = 0, 0, step + (step == self._steps)
            return groups

        return playing

    def posting(self, post: Any) -> Any:
        """`post`, during which servers are killed."""

        async def posting(client: HttpClient, path: str, *arguments: Any, **how: Any) -> Any:
            self._sent, kills = self._sent + (path == COMPLETIONS), len(self.done)
            if path == LOAD:
                asyncio.get_running_loop().call_later(0.02, self._kill, "update")
            elif self._sent == GROUPS * SIBLINGS:
                asyncio.get_running_loop().call_later(0.05, self._kill, "first token")
            answer = await post(client, path, *arguments, **how)
            if path == COMPLETIONS:
                self._back += 1
                if kills == len(self.done):  # it was sent after the last kill
                    self._note("seconds_recovery")
                if self._back == GROUPS * SIBLINGS // 2:
                    self._kill("decode")
                if self._step > self._steps and self._back > QUESTIONS // 4:
                    self._kill("evaluation")
            return answer

        return posting

    def saying(self, say: Any) -> Any:
        """`say`, which notes when it says that the server is gone."""

        def saying(folder: RunFolder, line: str) -> None:
            if any(text in line for text in FIRST_SAYS):
                self._note("seconds_line")
            say(folder, line)

        return saying

    def _note(self, name: str) -> None:
        if self.done and name not in self.done[-1]:
            self.done[-1][name] = round(time.monotonic() - self._at, 1)

    def _kill(self, place: str) -> None:
        """Kills the victim of the step, if that is due here."""
        victim, due = self._due.get(self._step, ("", ""))
        if place != due:
            return
        del self._due[self._step]
        self._at = time.monotonic()
        self.done.append({"step": self._step, "victim": victim, "place": place})
        for pid in servers_of(os.getpid(), VICTIMS[victim]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def timed(played: list[dict[str, float]]) -> Any:
    """`RolloutWorker.play`, which also appends its seconds, and those of CPU time, to `played`."""
    play = RolloutWorker.play

    def timed_play(worker: RolloutWorker, step: int) -> Any:
        wall, cpu = time.monotonic(), time.process_time()
        groups = play(worker, step)
        played.append({"wall": time.monotonic() - wall, "cpu": time.process_time() - cpu})
        return groups

    return timed_play


def servers_of(trainer: int, name: bytes = b"") -> list[int]:
    """The server processes: children of the supervisors, which are children of the trainer; or with a `name` those of
    their children whose command line holds it."""
    parents, commands = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            pid = int(stat.parent.name)
            parents[pid] = int(stat.read_text().rpartition(")")[2].split()[1])
            commands[pid] = (stat.parent / "cmdline").read_bytes()
    of = {pid for pid, parent in parents.items() if parent == trainer and b"supervisor.py" in commands.get(pid, b"")}
    servers = [pid for pid, parent in parents.items() if parent in of]
    return [pid for pid, parent in parents.items() if parent in servers and name in commands[pid]] if name else servers


def counted(run: Path, steps: int, played: list[dict[str, float]]) -> dict[str, Any]:
    """Counts of the run, and the trainer's CPU time where no server was killed."""
    lost = twice = 0
    for step in range(1, steps + 1):
        names = Counter(name for name, _ in episodes(run, step))
        lost += GROUPS * SIBLINGS - len(names)
        twice += sum(names.values()) - len(names)
    figures = rows(run)
    evaluated = json.loads((run / "eval" / "trained.json").read_text())["em"]["n"]
    calm = [one for one, row in zip(played, figures, strict=True) if not row["turns_redrawn"] + row["servers_reloaded"]]
    return {
        "steps": len(figures),
        "episodes": GROUPS * SIBLINGS * steps,
        "lost": lost,
        "questions_lost": QUESTIONS - evaluated,
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
