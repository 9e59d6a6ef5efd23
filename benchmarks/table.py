"""The results as a table for people and as one JSON object."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from transformers import Qwen3Config

from benchmarks.contest import Contest, TableRow
from benchmarks.flops import update_flops
from benchmarks.fresh import run_fresh
from benchmarks.machine import machine, versions
from benchmarks.materials import model_folder
from benchmarks.shapes import SHAPES, draw_rows

INTERVAL = "ratio: of the medians; low, high: least and greatest ratio of a pair of neighbouring runs"


def results(contest: Contest, rows: Sequence[TableRow]) -> dict[str, Any]:
    """All measurements; the rows first."""
    return {
        "rows": [asdict(row) for row in rows],
        "interval": INTERVAL,
        "rounds": contest.rounds,
        "utilisation": utilisation(contest),
        "tokens": tokens(contest),
        "gradients": contest.gradients,
        "grids": contest.grids,
        "versions": versions(),
        "machine": machine(),
    }


def tokens(contest: Contest) -> dict[str, dict[str, int]]:
    """By shape, the tokens that our update computed and those of the rows."""
    found = {shape: _reports(contest, shape) for shape in SHAPES}
    return {
        shape: {key: reports[0][key] for key in ("tokens_computed", "tokens_dense")}
        for shape, reports in found.items()
        if reports
    }


def utilisation(contest: Contest) -> dict[str, Any]:
    """By shape, the share of this machine's matrix products that our update reaches (beta 0, median of all runs)."""
    found = {shape: reports for shape in SHAPES if (reports := _reports(contest, shape))}
    if not found:
        return {}
    runs = [run_fresh("matmul")["flops"] for _ in range(3)]
    limits = {way: statistics.median(run[way] for run in runs) for way in runs[0]}
    shares = {}
    for shape, reports in found.items():
        config = Qwen3Config.from_pretrained(model_folder(contest.folder, SHAPES[shape].vocabulary))
        operations = update_flops(draw_rows(SHAPES[shape]), config)
        seconds = statistics.median(report["seconds"] for report in reports)
        reached = {way: operations / seconds / limit for way, limit in limits.items()}
        shares[shape] = {"flop": operations, "seconds": seconds, "share": reached}
    return {"matmul_flops": limits, "shapes": shares}


def print_table(found: dict[str, Any]) -> None:
    """The rows, then the other measurements."""
    print(f"{'':34}{'ours':>10}{'peer':>10}{'ratio':>8}   low  high  unit")
    for row in found["rows"]:
        if row["ratio"] is None:
            print(f"{row['name']:34}not measured: {row['note']}")
            continue
        figures = "".join(f"{row[side]:>10.4g}" for side in ("ours", "peer"))
        print(f"{row['name']:34}{figures}{row['ratio']:>8.2f} {row['low']:>5.1f} {row['high']:>5.1f}  "
              f"{row['unit']:9}{row['note']}")  # fmt: skip
    for shape, reached in found["utilisation"].get("shapes", {}).items():
        limits, counts = found["utilisation"]["matmul_flops"], found["tokens"][shape]
        shares = (f"{share:.0%} of {limits[way] / 1e9:.0f} GFLOP/s ({way})" for way, share in reached["share"].items())
        print(f"{shape}: {', '.join(shares)}, {counts['tokens_computed']} of {counts['tokens_dense']} tokens computed")
    print(", ".join(f"{name} {number}" for name, number in found["versions"].items()))
    print(", ".join(f"{name} {value}" for name, value in (found["machine"] | {"rounds": found["rounds"]}).items()))


def _reports(contest: Contest, shape: str) -> list[dict[str, Any]]:
    """The statistics of our updates of a shape, without those with a KL term."""
    names = [name for name in contest.reports if name.startswith(f"update/{shape}/") and not name.endswith("_kl")]
    return [report for name in names for report in contest.reports[name]]
