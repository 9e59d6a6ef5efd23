"""`python -m benchmarks.pooled_prefetch`: runs by how many updates their episodes may lag.

The server has a set speed: each token takes the same time, in place of a GPU's work, times a long-tailed factor of the
turn. It samples few turns at once, so that it needs little of the processor. With `--vllm` it is a real one, at the
speed that it has beside the trainer. The runs alternate, some steps each, so that other load affects all.

Of each lag: seconds of a step, the ratio of its speed to that of the run that waits, the idle shares of the trainer,
which waits for episodes, and of the server's slots, and what `sleuth plan --simulate` says of it by the times of the
first run; the difference between sampler and learner, the share of tokens beyond the bounds, which the loss truncates,
and episodes that are lost; exact match, of several seeds the mean of each question, and its difference from that of
the first lag. With `--uncorrected LAG` runs of this lag are made a second time with a loss that takes older tokens for
those of its own weights.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx

from benchmarks.served import emulated
from benchmarks.tiny_run import BASE, CONTEXT, episodes, evaluated, rows, train, write_recipe
from sleuth.engines.launch import Launch, ServerProcess, end_all, free_ports, start_all
from sleuth.evaluation.intervals import bounded_mean, paired_bootstrap
from sleuth.plan.parts import Parts, measured_parts
from sleuth.plan.simulate import Split, simulate
from sleuth.types import SleuthError

UNCORRECTED = ("stage.0.loss.old_logprobs=learner", "stage.0.loss.tis_cap=0.01")
"""The recipe must have a correction. A cap that far below 1 gives nearly every token the same weight, and Adam does not
see of which size."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Runs of one lag, of which there is one for each seed."""

    lag: int
    corrected: bool = True

    @property
    def name(self) -> str:
        return f"lag-{self.lag}{'' if self.corrected else '-uncorrected'}"


def main() -> None:
    """Print one JSON object, after each round of runs."""
    options = read_options()
    arms = [Arm(lag) for lag in options.lags] + [Arm(lag, corrected=False) for lag in options.uncorrected]
    sizes = {"prompts_per_step": options.prompts, "samples_per_prompt": options.samples, "probe_prompts": 0}
    busy = dict.fromkeys(arms, 0.0)
    with ExitStack() as open_:
        folder = options.folder or Path(open_.enter_context(tempfile.TemporaryDirectory(prefix="sleuth-bench-")))
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder.resolve() / "recipe.toml"
        recipe = kept if kept.exists() else write_recipe(folder.resolve(), options.steps)
        url = open_.enter_context(a_server(options, folder))
        for seed in range(options.seeds):
            for last in range(options.block or options.steps, options.steps + 1, options.block or options.steps):
                for arm in arms:
                    pool = {"urls": [url], "requests_at_once": options.at_once, "max_policy_lag": arm.lag}
                    overrides = [f"seed={seed}"] + [f"stage.0.{key}={value}" for key, value in sizes.items()]
                    overrides += [f"stage.0.stop_after={last}", f"stage.1.data.limit={options.questions}"]
                    overrides += [*(() if arm.corrected else UNCORRECTED), *options.overrides]
                    before = turn_seconds(url)
                    train(recipe, folder / f"{arm.name}-seed-{seed}", *overrides, **pool)
                    busy[arm] += (turn_seconds(url) - before) / options.at_once
            sizes_of = {"prompts": options.prompts, "samples": options.samples}
            split = Split(servers=1, ranks=1, slots=options.at_once, lag=0, **sizes_of)
            found = json.dumps(compared(folder, arms, seed + 1, busy, split))
            print(found, flush=True)
            if options.out:
                options.out.write_text(found + "\n")


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pooled_prefetch", description=__doc__)
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1, 2, 4], help="the first is compared with")
    parser.add_argument("--uncorrected", type=int, nargs="+", default=[], metavar="LAG", help="also without correction")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each (1)")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--block", type=int, help="steps of a run before it is the next one's turn (all)")
    parser.add_argument("--prompts", type=int, default=4, help="questions of a step (4)")
    parser.add_argument("--samples", type=int, default=4, help="episodes of a question (4)")
    parser.add_argument("--emulate", choices=("vllm", "sglang"), default="vllm")
    parser.add_argument("--token-seconds", type=float, default=0.05, help="seconds of a token (0.05)")
    parser.add_argument("--tail", type=float, default=1.0, help="sigma of their log-normal factor (1.0)")
    parser.add_argument("--at-once", type=int, default=16, help="turns under way (16)")
    parser.add_argument("--vllm", metavar="PROGRAM", help="a real one for CPUs, such as .venv-servers/bin/vllm")
    parser.add_argument("--questions", type=int, default=1, help="questions of the evaluation (1)")
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="of the recipe: stage.0.seed=1")
    parser.add_argument("--folder", type=Path, help="where the runs stay; those that are there go on (temporary)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the JSON goes too")
    return parser.parse_args()


@contextmanager
def a_server(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    """The address of the server that the options name."""
    if options.vllm is None:
        faults = json.dumps({"token_seconds": options.token_seconds, "tail": options.tail})
        with emulated(options.emulate, BASE, "--faults", faults, context=CONTEXT) as (url, _):
            yield url
        return
    launch = Launch(
        kind="vllm",
        program=(options.vllm,),
        model=str(BASE),
        port=free_ports(1)[0],
        context=CONTEXT,
        dtype="float32",
        requests=options.at_once,
    )
    server = ServerProcess("vllm", launch, folder / "vllm.log")
    start_all([server], lambda line: None)
    try:
        yield launch.url
    finally:
        end_all([server])


def turn_seconds(url: str) -> float:
    """The seconds that the turns of an emulated server took, all together; 0 for another server."""
    answer = httpx.post(f"{url}/faults", json={}, trust_env=False)
    return answer.json()["turn_seconds"] if answer.is_success else 0.0


def compared(
    folder: Path, arms: Sequence[Arm], seeds: int, busy: Mapping[Arm, float], split: Split
) -> dict[str, dict[str, Any]]:
    """The figures of the runs by the names of their arms; `busy` are seconds of the server, all slots together as
    one."""
    seconds, right, found = {}, {}, {}
    for arm in arms:
        runs = [folder / f"{arm.name}-seed-{seed}" for seed in range(seeds)]
        steps = [row for run in runs for row in rows(run)]
        waits, updates = (sum(row[half] for row in steps) for half in ("seconds_rollout", "seconds_update"))
        seconds[arm] = (waits + updates) / len(steps)
        right[arm] = [fmean(one["em"] for one in of) for of in zip(*map(evaluated, runs), strict=True)]
        trained = [row for row in steps if row["loss"] is not None]
        clipped = [row["clip_fraction"] for row in trained if row["clip_fraction"] is not None]
        apart = [abs(row["sampler_learner_kl"]) for row in trained]
        asked, first = split.prompts * split.samples * len(steps), arms[0]
        parts = [measured_parts(folder / f"{first.name}-seed-{seed}", "grpo", 1)[0] for seed in range(seeds)]
        found[arm.name] = {
            "step": round(seconds[arm], 2),
            "speed": round(seconds[first] / seconds[arm], 2),
            "trainer_idle": round(waits / (waits + updates), 3),
            "server_idle": round(1 - busy[arm] / (waits + updates), 3) if busy[arm] else None,
            "simulated": [simulated(one, replace(split, lag=arm.lag)) for one in parts],
            "policy_lag_mean": fmean(row.get("policy_lag_mean", row.get("off_policy_fraction", 0)) for row in steps),
            "turns_resumed": sum(row.get("turns_resumed", 0) for row in steps),
            "turns_redrawn": sum(row["turns_redrawn"] for row in steps),
            "episodes_lost": asked - sum(len(dict(episodes(run, row["step"]))) for run in runs for row in rows(run)),
            "largest_kl": max(apart, default=None),
            "mean_kl": fmean(apart) if apart else None,
            "clip_fraction": fmean(clipped) if clipped else None,
            "em": bounded_mean(right[arm]).as_json(),
            "em_of_seeds": [fmean(one["em"] for one in evaluated(run)) for run in runs],
            "em_more": paired_bootstrap(right[arm], right[first]).as_json(),
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
    try:
        main()
    except SleuthError as error:
        sys.exit(f"error: {error}")
