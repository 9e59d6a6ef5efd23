"""`python -m benchmarks.pooled_prefetch`: the steps of a run by how many updates its episodes may lag.

The server has a set speed: each token takes the same time, in place of a GPU's work, times a long-tailed factor of the
turn. It samples few turns at once, so that it needs little of the processor. The runs alternate, some steps each, so
that other load affects all. Of each: seconds of a step, the ratio of its speed to that of the run that waits, and the
idle shares of the trainer, which waits for episodes, and of the server's slots.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from benchmarks.served import emulated
from benchmarks.tiny_run import BASE, CONTEXT, rows, train, write_recipe


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
    options = parser.parse_args()
    faults = {"token_seconds": options.token_seconds, "tail": options.tail}
    sizes = {"prompts_per_step": options.prompts, "samples_per_prompt": options.samples, "probe_prompts": 0}
    busy = dict.fromkeys(options.lags, 0.0)
    with ExitStack() as open_:
        folder = Path(open_.enter_context(tempfile.TemporaryDirectory(prefix="sleuth-bench-")))
        recipe = write_recipe(folder, options.steps)
        served = emulated(options.emulate, BASE, "--faults", json.dumps(faults), context=CONTEXT)
        url, _ = open_.enter_context(served)
        for last in range(options.block, options.steps + 1, options.block):
            for lag in options.lags:
                pool = {"urls": [url], "requests_at_once": options.at_once, "max_policy_lag": lag}
                overrides = [f"stage.0.{key}={value}" for key, value in sizes.items()]
                before = turn_seconds(url)
                train(
                    recipe, folder / str(lag), f"stage.0.stop_after={last}", *overrides, "stage.1.data.limit=1", **pool
                )
                busy[lag] += (turn_seconds(url) - before) / options.at_once
        print(json.dumps(compared(folder, options.lags, busy)))


def turn_seconds(url: str) -> float:
    """The seconds that the turns of an emulated server took, all together."""
    return httpx.post(f"{url}/faults", json={}, trust_env=False).raise_for_status().json()["turn_seconds"]


def compared(folder: Path, lags: Sequence[int], busy: Mapping[int, float]) -> dict[str, Any]:
    """The figures of the runs, by their lags; `busy` are seconds of the server, all slots together as one."""
    seconds, found = {}, {}
    for lag in lags:
        steps = rows(folder / str(lag))
        waits, updates = (sum(row[half] for row in steps) for half in ("seconds_rollout", "seconds_update"))
        seconds[lag] = (waits + updates) / len(steps)
        trained = [row["sampler_learner_kl"] for row in steps if row["loss"] is not None]
        found[str(lag)] = {
            "step": round(seconds[lag], 2),
            "speed": round(seconds[lags[0]] / seconds[lag], 2),
            "trainer_idle": round(waits / (waits + updates), 3),
            "server_idle": round(1 - busy[lag] / (waits + updates), 3),
            "policy_lag_mean": steps[-1].get("policy_lag_mean", steps[-1].get("off_policy_fraction", 0)),
            "turns_resumed": sum(row.get("turns_resumed", 0) for row in steps),
            "turns_redrawn": sum(row["turns_redrawn"] for row in steps),
            "largest_kl": max(map(abs, trained), default=None),
        }
    return found


if __name__ == "__main__":
    main()
