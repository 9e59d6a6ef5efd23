"""Measures our side of every row in this checkout and in another one: `python -m benchmarks.against CHECKOUT`.

A change that must not cost speed or memory is shown by it: both run in fresh processes in turn, each with its own code
and materials. Exit status 1: a row's median here is worse than every run there."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from benchmarks.comparisons import METRICS, all_comparisons
from benchmarks.fresh import QUIET
from benchmarks.ours import BUDGET
from sleuth.host.threads import waiting_variables

HERE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What is measured of ours: `Side(name="update/search", job="update", arguments={"side": "ours", ...})`."""

    name: str
    job: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A row: the runs of each checkout in `unit`, in the order in which they were made."""

    name: str
    unit: str
    more_is_better: bool
    here: tuple[float, ...]
    there: tuple[float, ...]

    @property
    def worse(self) -> bool:
        """Whether the median here is worse than every run there."""
        median = statistics.median(self.here)
        return median < min(self.there) if self.more_is_better else median > max(self.there)

    def line(self) -> str:
        """The row for people: median and range of each side."""
        sides = "".join(
            f"{statistics.median(runs):>9.4g} ({min(runs):.4g} to {max(runs):.4g})".ljust(34)
            for runs in (self.here, self.there)
        )
        return f"{self.name:22}{sides}{self.unit}{', worse' if self.worse else ''}"


def main() -> int:
    """Measures, prints a line a row; exit status 1 if a row is worse."""
    options = read_options()
    sides = [side for side in our_sides() if fnmatch(side.name, options.only)]
    if not sides:
        print(f"--only {options.only}: no row has such a name; there are:", file=sys.stderr)
        print(*(side.name for side in our_sides()), sep="\n", file=sys.stderr)
        return 2
    changes = []
    with tempfile.TemporaryDirectory(prefix="sleuth-bench-") as folder:
        homes = [(HERE, Path(folder) / "here"), (options.checkout, Path(folder) / "there")]
        for checkout, materials in homes:
            run_in(checkout, "materials", folder=str(materials))
        print(f"{'':22}{'here':34}{options.checkout.name:34}")
        for side in sides:
            changes.append(compare(side, homes, options.rounds))
            print(changes[-1].line(), flush=True)
    if options.out:
        options.out.write_text(json.dumps([asdict(change) for change in changes], indent=2) + "\n")
    return int(any(change.worse for change in changes))


def compare(side: Side, homes: Sequence[tuple[Path, Path]], rounds: int) -> Change:
    """One row. `homes` are this checkout and the other one, each with its materials; both are measured `rounds` times
    in turn, the other one first in every second round."""
    metric = METRICS[side.job]
    runs: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            checkout, materials = homes[which]
            runs[which].append(run_in(checkout, side.job, folder=str(materials), **side.arguments)[metric.key])
    here, there = map(tuple, runs)
    return Change(name=side.name, unit=metric.unit, more_is_better=metric.more_is_better, here=here, there=there)


def our_sides() -> list[Side]:
    """Our side of the table's rows, each once; where the table tunes ours, the default of a recipe."""
    found: dict[str, Side] = {}
    for row in all_comparisons():
        parts = row.name.split("/")
        name = "/".join(parts[:2]) + ("/kl" if "beta" in row.given else "")
        setting = {"setting": BUDGET} if row.own_grid else {}
        if not row.busy:
            found.setdefault(name, Side(name=name, job=row.job, arguments={**row.given, **row.ours, **setting}))
    return list(found.values())


def run_in(checkout: Path, job: str, **arguments: Any) -> dict[str, Any]:
    """The result of a job of `benchmarks.jobs` in a new process with the code of a checkout."""
    environment = os.environ | QUIET | waiting_variables() | {"PYTHONPATH": f"{checkout / 'src'}:{checkout}"}
    command = [sys.executable, "-m", "benchmarks.jobs", job, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=checkout, check=False)
    if done.returncode:
        raise SystemExit(f"{job} in {checkout} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__)
    parser.add_argument(
        "checkout", type=Path, help="the root of another checkout, such as a worktree of an older commit"
    )
    parser.add_argument("--only", default="*", metavar="PATTERN", help="rows by name, as in a shell: 'sample/*'")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each checkout for each row (3)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="every run as JSON")
    options = parser.parse_args()
    options.checkout = options.checkout.resolve()
    if not (options.checkout / "benchmarks" / "jobs.py").is_file():
        parser.error(f"{options.checkout}: no checkout of Sleuth (it has no benchmarks/jobs.py)")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
