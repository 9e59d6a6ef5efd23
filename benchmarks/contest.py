"""Runs a comparison: tunes the peer, compares gradients, measures both sides in turn, and returns the row."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.comparisons import METRICS, Comparison, Setting
from benchmarks.fresh import JobFailedError, busy_neighbour, run_fresh

TOLERANCE = 1e-5
"""Relative error of our gradient against a peer's, in fp32, above which speed is not compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One row: `ours` and `peer` are medians in `unit`, `ratio` is how many times faster or smaller ours is, `low` and
    `high` are the smallest and the largest ratio of a pair. All are None, with a note, if nothing could be compared.

    `TableRow(name="update/refiner/trl", ours=2.4, peer=12.0, ratio=5.0, low=4.6, high=5.3, unit="s")`.
    """

    name: str
    unit: str
    ours: float | None = None
    peer: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """One run of the benchmarks: the folder of materials, the number of rounds, and intermediate measurements.

    `grids`: by measurement, the value at each setting. `gradients`: relative errors by row. `reports`: the statistics
    of our side in each round, by row. `quiet`: ours without the busy neighbour, by row with one.
    """

    folder: Path
    rounds: int
    say: Callable[[str], None]
    grids: dict[str, dict[str, float | str]] = field(default_factory=dict)
    gradients: dict[str, float] = field(default_factory=dict)
    reports: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    quiet: dict[str, list[float]] = field(default_factory=dict)

    def row(self, comparison: Comparison) -> TableRow:
        """The comparison's row; if it cannot be measured, with a note that says why."""
        unit = METRICS[comparison.job].unit
        try:
            peer = {**comparison.peer, **(setting := self._tune(comparison, comparison.peer, comparison.grid))}
            self._survey(comparison.job, comparison, comparison.peer, comparison.grid)  # what it takes elsewhere
            own = self._tune(comparison, comparison.ours, comparison.own_grid) if comparison.own_grid else {}
            ours = {**comparison.ours, **own}
            if comparison.same_gradients and (note := self._difference(comparison, peer)):
                return TableRow(name=comparison.name, unit=unit, note=note)
            results = [self._pair(comparison, ours, peer, turn) for turn in range(self.rounds)]
        except JobFailedError as error:
            self.say(str(error))
            return TableRow(name=comparison.name, unit=unit, note=str(error).splitlines()[-1])
        key = METRICS[comparison.job].key
        note = f"ours at {_name(own)}; peer at {_name(setting)}" if own else f"peer at {_name(setting)}"
        if comparison.job == "memory":
            seconds = (statistics.median(side["seconds"] for side in sides) for sides in zip(*results, strict=True))
            note += "; {:.3g} s against {:.3g}".format(*seconds)
        if comparison.busy:
            quiet = statistics.median(self.quiet[comparison.name])
            busy = statistics.median(mine[key] for mine, _ in results)
            kept = _ratio(busy, quiet, METRICS[comparison.job].more_is_better)
            note += f"; ours keeps {kept:.2f} of its quiet rate ({quiet:.4g})"
        return table_row(comparison, [(mine[key], theirs[key]) for mine, theirs in results], note=note)

    def _tune(self, comparison: Comparison, side: Setting, grid: Sequence[Setting]) -> Setting:
        """The setting of the grid at which a side is fastest or smallest."""
        metric = METRICS[comparison.tuned_by]
        found = self._survey(comparison.tuned_by, comparison, side, grid)
        values = {at: value for at, value in found.items() if not isinstance(value, str)}
        if not values:
            raise JobFailedError(
                f"no setting of the grid could be measured: {'; '.join(sorted({*map(str, found.values())}))}"
            )
        best = max(values, key=values.__getitem__) if metric.more_is_better else min(values, key=values.__getitem__)
        return next(setting for setting in grid if _name(setting) == best)

    def _survey(
        self, job: str, comparison: Comparison, side: Setting, grid: Sequence[Setting]
    ) -> dict[str, float | str]:
        """The value of a side at every setting of the grid, or the error. Measured once per side and shape, without the
        KL term, which does not change which setting is best."""
        given = {key: value for key, value in comparison.given.items() if key != "beta"}
        name = " ".join([*(["busy"] if comparison.busy else []), job, *map(str, given.values()), side["side"]])
        if name not in self.grids:
            self.grids[name] = {}
            for setting in grid:
                self.say(f"{name}: trying {_name(setting)}")
                try:
                    found = self._run(job, given, side, setting, busy=comparison.busy)[METRICS[job].key]
                except JobFailedError as error:
                    found = str(error).splitlines()[-1]
                self.grids[name][_name(setting)] = found
        return self.grids[name]

    def _difference(self, comparison: Comparison, peer: Setting) -> str:
        """The difference between the gradients as a note; empty if they agree."""
        self.say(f"{comparison.name}: comparing gradients")
        given = dict(comparison.given)
        terms = {key: given.pop(key) for key in ("beta",) if key in given}
        settled = {key: value for key, value in peer.items() if key != "threads"}  # of its process, not of the side
        sides = {"ours": {**comparison.ours, **terms}, "peer": {**settled, **terms}}
        error = self._run("gradients", given, sides)["error"]
        self.gradients[comparison.name] = error
        return "" if error <= TOLERANCE else f"gradients differ by {error:.1e}, more than {TOLERANCE:.0e}"

    def _pair(self, comparison: Comparison, ours: Setting, peer: Setting, turn: int) -> tuple[dict[str, Any], ...]:
        """The reports of ours and of the peer; ours is measured first in every other round."""
        key = METRICS[comparison.job].key
        sides = {"ours": ours, "peer": peer}
        results = {}
        for side in ("ours", "peer") if turn % 2 == 0 else ("peer", "ours"):
            results[side] = self._run(comparison.job, comparison.given, sides[side], busy=comparison.busy)
            self.say(f"{comparison.name}: round {turn + 1}, {side} {results[side][key]:.4g}")
        self.reports.setdefault(comparison.name, []).append(results["ours"])
        if comparison.busy:
            alone = self._run(comparison.job, comparison.given, ours)[key]
            self.quiet.setdefault(comparison.name, []).append(alone)
            self.say(f"{comparison.name}: round {turn + 1}, ours without the neighbour {alone:.4g}")
        return results["ours"], results["peer"]

    def _run(self, job: str, *arguments: Mapping[str, Any], busy: bool = False) -> dict[str, Any]:
        merged = {key: value for part in arguments for key, value in part.items()}
        with busy_neighbour() if busy else nullcontext():
            return run_fresh(job, folder=str(self.folder), **merged)


def table_row(comparison: Comparison, pairs: list[tuple[float, float]], note: str = "") -> TableRow:
    """The row of (ours, peer) pairs: the ratio of the medians, with the smallest and the largest ratio of a pair as
    bounds."""
    metric = METRICS[comparison.job]
    ours, peer = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratios = [_ratio(*pair, metric.more_is_better) for pair in pairs]
    return TableRow(
        name=comparison.name,
        unit=metric.unit,
        ours=ours,
        peer=peer,
        ratio=_ratio(ours, peer, metric.more_is_better),
        low=min(ratios),
        high=max(ratios),
        note=note,
    )


def _ratio(ours: float, peer: float, more_is_better: bool) -> float:
    return ours / peer if more_is_better else peer / ours


def _name(setting: Setting) -> str:
    return json.dumps(setting)[1:-1].replace('"', "")
