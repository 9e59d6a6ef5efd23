"""`python -m benchmarks.pooled_prefetch`: the steps of a run by how many updates its episodes may lag.

The server has a set speed: each token takes the same time, in place of a GPU's work, times a long-tailed factor of the
turn. It samples few turns at once, so that it needs little of the processor. The runs alternate, some steps each, so
that other load affects all. Of each: seconds of a step, the ratio of its speed to that of the run that waits, and the
idle shares of the trainer, which waits for episodes, and of the server's slots. Beside them what `sleuth plan
--simulate` says of it by the times of the first run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx

from benchmarks.served import emulated
from benchmarks.tiny_run import BASE, CONTEXT, exact_match, rows, train, write_recipe
from sleuth.plan.parts import Parts, measured_parts
from sleuth.plan.simulate import Split, simulate


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pooled_prefetch", description=__doc__)
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1, 2, 4], help="the first is compared with")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--block", type=int, default=20, help="steps of a run before it is the next one's turn (20)")
    parser.add_argument("--prompts", type=int, default=4, help="questions of a step (4)")
    parser.add_argument("--samples", type=int, default=4, help="episodes of a question (4)")
    parser.add_argument("--emulate", choices=("vllm", "sglang"), default="vllm")
    parser.add_argument("--token-seconds", type=float, default=0.05, help="seconds of a token (0.05)")
    parser.add_argument("--tail", type=float, default=1.0, help="sigma of their log-normal factor (1.0)")
    parser.add_argument("--at-once", type=int, default=16, help="turns under way (16)")
    parser.add_argument("--url", help="a server that runs already, with whatever speed it has")
    parser.add_argument("--questions", type=int, default=1, help="questions of the evaluation (1)")
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="of the recipe: stage.0.seed=1")
    options = parser.parse_args()
    faults = {"token_seconds": options.token_seconds, "tail": options.tail}
    sizes = {"prompts_per_step": options.prompts, "samples_per_prompt": options.samples, "probe_prompts": 0}
    busy = dict.fromkeys(options.lags, 0.0)
    with ExitStack() as open_:
        folder = Path(open_.enter_context(tempfile.TemporaryDirectory(prefix="sleuth-bench-")))
        recipe = write_recipe(folder, options.steps)
        url = options.url
        if url is None:
            served = emulated(options.emulate, BASE, "--faults", json.dumps(faults), context=CONTEXT)
            url, _ = open_.enter_context(served)
        for last in range(options.block, options.steps + 1, options.block):
            for lag in options.lags:
                pool = {"urls": [url], "requests_at_once": options.at_once, "max_policy_lag": lag}
                overrides = [f"stage.0.{key}={value}" for key, value in sizes.items()] + options.overrides
                overrides += [f"stage.0.stop_after={last}", f"stage.1.data.limit={options.questions}"]
                before = turn_seconds(url)
                train(recipe, folder / str(lag), *overrides, **pool)
                busy[lag] += (turn_seconds(url) - before) / options.at_once
        split = Split(
            servers=1, ranks=1, slots=options.at_once, prompts=options.prompts, samples=options.samples, lag=0
        )
        print(json.dumps(compared(folder, options.lags, busy, split)))


def turn_seconds(url: str) -> float:
    """The seconds that the turns of an emulated server took, all together; 0 for another server."""
    answer = httpx.post(f"{url}/faults", json={}, trust_env=False)
    return answer.json()["turn_seconds"] if answer.is_success else 0.0


def compared(folder: Path, lags: Sequence[int], busy: Mapping[int, float], split: Split) -> dict[str, Any]:
    """The figures of the runs, by their lags; `busy` are seconds of the server, all slots together as one."""
    seconds, found, (parts, *_) = {}, {}, measured_parts(folder / str(lags[0]), "grpo", 1)
    for lag in lags:
        steps = rows(folder / str(lag))
        waits, updates = (sum(row[half] for row in steps) for half in ("seconds_rollout", "seconds_update"))
        seconds[lag] = (waits + updates) / len(steps)
        trained = [row for row in steps if row["loss"] is not None]
        clipped = [row["clip_fraction"] for row in trained if row["clip_fraction"] is not None]
        found[str(lag)] = {
            "step": round(seconds[lag], 2),
            "speed": round(seconds[lags[0]] / seconds[lag], 2),
            "trainer_idle": round(waits / (waits + updates), 3),
            "server_idle": round(1 - busy[lag] / (waits + updates), 3) if busy[lag] else None,
            "simulated": simulated(parts, replace(split, lag=lag)),
            "policy_lag_mean": fmean(row.get("policy_lag_mean", row.get("off_policy_fraction", 0)) for row in steps),
            "turns_resumed": sum(row.get("turns_resumed", 0) for row in steps),
            "turns_redrawn": sum(row["turns_redrawn"] for row in steps),
            "largest_kl": max((abs(row["sampler_learner_kl"]) for row in trained), default=None),
            "clip_fraction": fmean(clipped) if clipped else None,
            "reward": fmean(row["reward_mean"] for row in steps[len(steps) // 2 :]),
            "em": exact_match(folder / str(lag)),
        }
    return found


def simulated(parts: Parts, split: Split) -> dict[str, float]:
    """What should have been measured."""
    played = simulate(parts, split, steps=40)
    idle = {
        f"{part}_idle": round(1 - played.busy[f"{part}{'s' * (part == 'server')}"], 3) for part in ("trainer", "server")
    }
    return {"step": round(played.step, 2)} | idle


if __name__ == "__main__":
    main()
