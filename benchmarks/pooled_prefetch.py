"""`python -m benchmarks.pooled_prefetch`: sampling one step ahead, beside a run that waits for each step's episodes.

The server sleeps before each turn, in place of a GPU's work, and samples few turns at once, so that it needs little CPU
time. In the run that waits, a step is the sum of its halves: the seconds of the rollout, and those of the update and
the weight transfer. The two runs alternate, some steps each, so that other load affects both. The ratio is of a step
with prefetching over the longer half of the neighbouring steps, by medians.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.served import emulated
from benchmarks.tiny_run import BASE, CONTEXT, exact_match, rows, train, write_recipe

SIDES = ("waits", "ahead")
HALVES = ("seconds_rollout", "seconds_update")


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pooled_prefetch", description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--block", type=int, default=20, help="steps of a run before it is the other's turn (20)")
    parser.add_argument("--samples", type=int, default=16, help="episodes of a question (16)")
    parser.add_argument("--emulate", choices=("vllm", "sglang"), default="sglang")
    parser.add_argument("--latency", type=float, default=0.2, help="seconds that each turn is late (0.2)")
    parser.add_argument("--at-once", type=int, default=32, help="turns under way (32)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sleuth-bench-") as name:
        folder = Path(name)
        recipe = write_recipe(folder, options.steps)
        faults = ("--faults", json.dumps({"latency": options.latency}))
        with emulated(options.emulate, BASE, *faults, context=CONTEXT) as (url, _):
            for last in range(options.block, options.steps + 1, options.block):
                for ahead in (0, 1):
                    pool = {"urls": [url], "requests_at_once": options.at_once, "max_policy_lag": ahead}
                    overrides = (f"stage.0.stop_after={last}", f"stage.0.samples_per_prompt={options.samples}")
                    train(recipe, folder / SIDES[ahead], *overrides, **pool)
        print(json.dumps(compared(*(folder / side for side in SIDES), options.block)))


def compared(waits: Path, ahead: Path, count: int) -> dict[str, object]:
    """The medians of `count` steps each, and their ratios."""
    longer, steps, ratios = [], [], []
    for first in range(0, len(rows(waits)), count):
        block = slice(first + 1, first + count - 1)  # a session's first step has nothing ahead of it, its last no next
        longer.append(max(median(row[half] for row in rows(waits)[block]) for half in HALVES))
        steps.append(median(sum(row[half] for half in HALVES) for row in rows(ahead)[block]))
        ratios.append(steps[-1] / longer[-1])
    return {
        "halves": {half: round(median(row[half] for row in rows(waits)), 3) for half in HALVES},
        "step_ahead": round(median(steps), 3),
        "of_longer_half": round(median(ratios), 3),
        "least": round(min(ratios), 3),
        "largest": round(max(ratios), 3),
        "off_policy_fraction": rows(ahead)[-1]["off_policy_fraction"],
        "em": {replica.name: exact_match(replica) for replica in (waits, ahead)},
    }


if __name__ == "__main__":
    main()
