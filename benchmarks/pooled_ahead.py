"""`python -m benchmarks.pooled_ahead`: sampling one step ahead, beside a run that waits for each step's episodes.

The server sleeps before each turn, as a card would be at work, and writes few turns at once: most of its time costs no
core. In the run that waits, a step is the sum of its halves: seconds in which episodes are played, and seconds in which
the learner computes and hands its weights out. The ratio is of a step one ahead over the longer half, by medians.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.served import served
from benchmarks.tiny_run import BASE, CONTEXT, exact_match, rows, train, write_recipe

SAMPLES = "stage.0.samples_per_prompt=16"


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pooled_ahead", description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--speak", choices=("vllm", "sglang"), default="sglang")
    parser.add_argument("--latency", type=float, default=0.1, help="seconds that each turn is late (0.1)")
    parser.add_argument("--at-once", type=int, default=16, help="turns under way (16)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sleuth-bench-") as name:
        folder = Path(name)
        recipe = write_recipe(folder, options.steps)
        arguments = ("--speak", options.speak, "--context", str(CONTEXT), "--fault", f"latency={options.latency}")
        with served("serve", str(BASE), *arguments) as (url, _):
            pool = {"urls": [url], "requests_at_once": options.at_once}
            waiting, ahead = folder / "waiting", folder / "ahead"
            seconds = {"waiting": train(recipe, waiting, SAMPLES, **pool)}
            seconds["ahead"] = train(recipe, ahead, SAMPLES, **pool, ahead=1)
        halves = {half: _median(waiting, half) for half in ("seconds_rollout", "seconds_update")}
        step = _median(ahead, "seconds_rollout", "seconds_update")
        figures = {
            "halves": halves,
            "step_that_waits": _median(waiting, "seconds_rollout", "seconds_update"),
            "step_ahead": step,
            "of_longer_half": round(step / max(halves.values()), 3),
            "off_policy_fraction": rows(ahead)[-1]["off_policy_fraction"],
            "em": {place.name: exact_match(place) for place in (waiting, ahead)},
            "seconds": seconds,
        }
        print(json.dumps(figures))


def _median(folder: Path, *parts: str) -> float:
    """Seconds of a step; the first, which loads code and has nothing ahead of it, and the last are left out."""
    return round(median(sum(row[part] for part in parts) for row in rows(folder)[1:-1]), 3)


if __name__ == "__main__":
    main()
