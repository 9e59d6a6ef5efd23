"""`python -m benchmarks`: measures every comparison, prints a table and writes `benchmarks/results/latest.json`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.comparisons import all_comparisons
from benchmarks.contest import Contest, TableRow
from benchmarks.fresh import run_fresh
from benchmarks.table import print_table, results

LATEST = Path(__file__).parent / "results" / "latest.json"


def main() -> int:
    """Measures and prints the rows; exit status 0 if every row could be measured."""
    options = read_options()
    chosen = [comparison for comparison in all_comparisons() if fnmatch(comparison.name, options.only)]
    if not chosen:
        print(f"--only {options.only}: no row has such a name; there are:", file=sys.stderr)
        print(*(comparison.name for comparison in all_comparisons()), sep="\n", file=sys.stderr)
        return 2
    target = options.out or (LATEST if options.only == "*" else None)
    with tempfile.TemporaryDirectory(prefix="sleuth-bench-") as folder:
        run_fresh("materials", folder=folder)
        contest = Contest(folder=Path(folder), rounds=options.rounds, say=lambda line: print(line, file=sys.stderr))
        rows: list[TableRow] = []
        found = results(contest, rows)
        for comparison in chosen:
            rows.append(contest.row(comparison))
            found = results(contest, rows)
            if target:  # after every row: an hour of measurements is not lost to the last one
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(json.dumps(found, indent=2) + "\n")
    if options.json:
        print(json.dumps(found))
    else:
        print_table(found)
    return int(any(row.ratio is None for row in rows))


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="rows by name, as in a shell: 'update/*/trl'")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="pairs of runs for each row (5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the JSON goes; with --only, nowhere else")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
