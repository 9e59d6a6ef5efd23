"""What a teacher of the student's size adds to an update: `python -m benchmarks.taught [--shape search] [--rounds 5]`.

An update of the shape without a teacher, with one that is followed on the sampled tokens, and with one whose likeliest
tokens are: each in a fresh process, in turn, starting with another one in each round. Exit status 1: a teacher adds
more than `MOST` by the medians."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile

from benchmarks.against import HERE, run_in
from benchmarks.ours import BUDGET
from benchmarks.shapes import SHAPES

MOST = 0.35
TEACHERS = (None, "sampled", "likeliest")


def main() -> int:
    """Measures and prints a line a side."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.taught", description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="search", help="of the update (search)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="updates of each (5)")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least 1")
    seconds: dict[str | None, list[float]] = {teacher: [] for teacher in TEACHERS}
    with tempfile.TemporaryDirectory(prefix="sleuth-bench-") as folder:
        run_in(HERE, "materials", folder=folder)
        for turn in range(options.rounds):
            for at in range(len(TEACHERS)):
                teacher = TEACHERS[(turn + at) % len(TEACHERS)]
                given = {"side": "ours", "shape": options.shape, "setting": BUDGET, "teacher": teacher}
                seconds[teacher].append(run_in(HERE, "update", folder=folder, **given)["seconds"])
    alone = statistics.median(seconds[None])
    over = False
    for teacher, runs in seconds.items():
        added = statistics.median(runs) / alone - 1
        over |= added > MOST
        name = f"teacher, {teacher} tokens" if teacher else "no teacher"
        print(f"{name:28}{statistics.median(runs):7.2f} s ({min(runs):.2f} to {max(runs):.2f})  {added:+.0%}")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
