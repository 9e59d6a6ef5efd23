"""`python -m benchmarks.pooled_killed`: a run through two servers of which one is killed every 20 seconds.

One emulates vLLM, the other SGLang; a killed one is restarted at once with the initial weights of the run. The same run
with the engine in the process samples with the same seeds as the servers, so that episodes can be compared token by
token. Both are read from their folders: the episodes of every step, and the exact match of the last weights.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.served import emulated
from benchmarks.tiny_run import BASE, CONTEXT, episodes, exact_match, rows, train, write_recipe
from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.remote.pool import PoolEngine, PoolLimits
from sleuth.engines.remote.server import discover_server
from sleuth.engines.sampling import request_seed
from sleuth.learn.master_weights import learner_logprobs
from sleuth.learn.models import load_model
from sleuth.render import encode, find_eos_ids
from sleuth.types import Completion, Sampling

SIDES = ("process", "pool")


class Restarted:
    """A server of the tiny base model, killed and started again at one address."""

    def __init__(self, emulate: str) -> None:
        self.emulate = emulate
        self._open = ExitStack()
        self._port = 0
        self.start()

    def start(self) -> None:
        """Starts it and waits until it answers."""
        self.url, self._process = self._open.enter_context(
            emulated(self.emulate, BASE, context=CONTEXT, port=self._port)
        )
        self._port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """Kills it without a shutdown (SIGKILL)."""
        self._process.kill()
        self._process.wait()
        self._open.close()


class DrawsAsServers(LocalEngine):
    """The engine in this process, with the draws of a server that gets a seed with each request."""

    async def complete(self, tokens: Sequence[int], sampling: Sampling) -> Completion:
        """See `LocalEngine`."""
        return await super().complete(tokens, replace(sampling, key=(1, request_seed(sampling.key))))


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pooled_killed", description=__doc__)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between kills (20)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sleuth-bench-") as name:
        folder = Path(name)
        recipe = write_recipe(folder, options.steps)
        with patch("sleuth.engines.local.plain_engine.LocalEngine", DrawsAsServers):
            seconds = {"process": train(recipe, folder / "process")}
        with ExitStack() as open_:
            servers = [Restarted("vllm"), Restarted("sglang")]
            for server in servers:
                open_.callback(server.kill)
            with killing(servers, options.every, folder / "pool" / "metrics.jsonl") as kills:
                seconds["pool"] = train(recipe, folder / "pool", urls=[server.url for server in servers])
            caught = {server.emulate: started_anew(server, folder) for server in servers}
        figures = {"kills": len(kills)} | compared(folder, options.steps)
        print(json.dumps(figures | {"started_anew_before_64_turns": caught, "seconds": seconds}))


@contextmanager
def killing(servers: Sequence[Restarted], every: float, metrics: Path) -> Iterator[list[float]]:
    """From the first step on, one after the other is killed and started again; the moments of the kills."""
    over, moments = threading.Event(), []

    def kill() -> None:
        while not metrics.exists() and not over.wait(0.1):
            pass
        due = time.monotonic()
        for server in itertools.cycle(servers):
            due += every
            if over.wait(max(0.0, due - time.monotonic())):
                return
            moments.append(time.monotonic())
            server.kill()
            server.start()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield moments
    finally:
        over.set()
        killer.join()


def started_anew(server: Restarted, folder: Path) -> dict[str, float]:
    """What becomes of turns at a server that took the run's last weights and was started again with the first: how
    often it was given them again, and how far from the learner's the log-probabilities are that were accepted."""
    model, tokenizer = load_model(
        str(sorted(folder.glob("pool/checkpoints/step-*"))[-1]), dtype="float32", device="cpu"
    )
    eos_ids = find_eos_ids(model.generation_config, tokenizer)
    pool = PoolEngine(
        [discover_server(server.url, tokenizer=tokenizer, eos_ids=eos_ids)],
        model,
        tokenizer,
        eos_ids=eos_ids,
        context=CONTEXT,
        temperature=1.0,
        limits=PoolLimits(requests_at_once=64, seconds=300, unavailable_timeout=60, sleeps=False),
        shared=folder / "weights",
        log=lambda line: None,
    )
    pool.publish(1)
    server.kill()
    server.start()
    prompt = encode(tokenizer, "Question: ")

    async def write() -> list[Completion]:
        turns = (Sampling(max_tokens=32, key=(0, 0, 1, 0, sample, 0)) for sample in range(64))
        return await asyncio.gather(*(pool.complete(prompt, turn) for turn in turns))

    apart = 0.0
    for turn in asyncio.run(write()):
        ours = learner_logprobs(model, prompt, turn.tokens, 1.0)
        apart = max(apart, *(abs(one - other) for one, other in zip(ours, turn.logprobs or (), strict=True)))
    return {"given_again": pool.figures()["servers_reloaded"], "logprobs_apart": apart}


def compared(folder: Path, steps: int) -> dict[str, Any]:
    """Counts of the pool's run: lost and repeated episodes, and those equal token by token to the other run."""
    played = lost = twice = same = 0
    for step in range(1, steps + 1):
        expected, actual = (episodes(folder / side, step) for side in SIDES)
        names = {name for name, _ in actual}
        played += len(actual)
        twice += len(actual) - len(names)
        lost += sum(name not in names for name, _ in expected)
        same += sum(written == dict(expected).get(name) for name, written in actual)
    figures = rows(folder / "pool")
    log = (folder / "pool" / "log.txt").read_text()
    return {
        "steps": len(figures),
        "episodes": played,
        "lost": lost,
        "counted_twice": twice,
        "token_by_token_those_of_the_process": same,
        "turns_redrawn": sum(row["turns_redrawn"] for row in figures),
        "found_with_old_weights_within_a_step": log.count("came back with the weights 'default'"),
        "largest_mismatch_kl": max(abs(row["sampler_learner_kl"]) for row in figures if row["loss"] is not None),
        "em": {side: exact_match(folder / side) for side in SIDES},
    }


if __name__ == "__main__":
    main()
