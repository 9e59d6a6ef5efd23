"""The table of a sweep: the figures of each arm over its seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from sleuth.evaluation.figures import figure
from sleuth.evaluation.intervals import UNMEASURED, Measured, minus
from sleuth.evaluation.paired import Evaluation, measured_of, set_tables
from sleuth.evaluation.significance import Difference, difference, level
from sleuth.host.model_path import read_object
from sleuth.recipe.sweep import ArmTableRecipe, SweepRecipe
from sleuth.report.run_files import read_with_sets
from sleuth.runs.metrics import MetricsFile
from sleuth.types import SleuthError


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRow:
    """An arm: `figures` over its finished `seeds`, the trained tokens (mean over seeds), and the difference `over` the
    table's other arm in the first figure. `certified` seeds passed the evaluation's certificate; None without
    certificates. `stopped` has the claim of the gate at which a seed ended; figures of later stages are over the other
    seeds. `shorter` has the steps of seeds that were trained for fewer than another one: they are in no figure."""

    name: str
    seeds: tuple[int, ...]
    figures: Mapping[str, Measured]
    tokens_trained: float
    over: Difference | None
    certified: int | None
    stopped: Mapping[int, str]
    shorter: Mapping[int, int]

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "seeds": list(self.seeds),
            "tokens_trained": self.tokens_trained,
            "figures": {name: figure.as_json() for name, figure in self.figures.items()},
            "over": self.over and self.over.as_json(),
            "certified": self.certified,
            "stopped": {str(seed): claim for seed, claim in self.stopped.items()},
            "shorter": {str(seed): steps for seed, steps in self.shorter.items()},
        }


def arm_folder(root: Path, seed: int, arm: str) -> Path:
    """The run folder of an arm and a seed."""
    return root / f"seed-{seed}" / arm


def arm_table(recipe: SweepRecipe, root: Path) -> list[ArmRow]:
    """A row for every arm that was evaluated with at least one seed, or ended at its gate.

    Levels and differences are over texts and, with several seeds, over these too, as in
    `sleuth.evaluation.significance`. Differences are paired by text and seed, because arms share their first stages. A
    figure without values by text is the mean over seeds, with an interval over them. Raises SleuthError for a figure
    that no evaluation has."""
    wanted = recipe.table
    arms = {arm.name: _read_arm(recipe, root, arm.name) for arm in recipe.arm}
    for stage, key in map(wanted.source_of, wanted.figures):
        evaluations = [one for arm in arms.values() for one in arm.evaluations[stage].values()]
        known = {name for one in evaluations for name, value in one.items() if measured_of(value)}
        if evaluations and key not in known:
            raise SleuthError(f"table.figures: no {stage} has {key}; there are {', '.join(sorted(known))}")
    first, key = wanted.source_of(wanted.figures[0])
    rows = []
    for name, arm in arms.items():
        done = arm.evaluations[wanted.evaluation]
        if not done and not arm.stopped:
            continue
        base = arms[wanted.against].evaluations[first] if wanted.against not in (None, name) else {}
        rows.append(
            ArmRow(
                name=name,
                seeds=tuple(done),
                figures=_levels(wanted, arm.evaluations),
                tokens_trained=fmean(arm.tokens[seed] for seed in {**done, **arm.stopped}),
                over=_apart(key, arm.evaluations[first], base),
                certified=_certified(list(done.values())),
                stopped=arm.stopped,
                shorter=arm.shorter,
            )
        )
    return rows


ByStage = Mapping[str, Mapping[int, Evaluation]]
"""The finished evaluations of an arm, by stage and seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arm:
    """What the runs of an arm hold: its evaluations, without those of `shorter` seeds, and by seed the trained tokens,
    the claim of the missed gate at which a run ended, and the steps of seeds that were trained for fewer than others.
    """

    evaluations: ByStage
    tokens: Mapping[int, int]
    stopped: Mapping[int, str]
    shorter: Mapping[int, int]


def _read_arm(recipe: SweepRecipe, root: Path, name: str) -> _Arm:
    wanted = recipe.table
    runs = {seed: arm_folder(root, seed, name) for seed in recipe.seeds}
    metrics = {seed: MetricsFile(run / "metrics.jsonl").rows() for seed, run in runs.items()}
    evaluated = [seed for seed, run in runs.items() if (run / "eval" / f"{wanted.evaluation}.json").is_file()]
    steps = {seed: len({(row["stage"], row["step"]) for row in metrics[seed]}) for seed in evaluated}
    shorter = {seed: of_seed for seed, of_seed in steps.items() if of_seed < max(steps.values())}
    evaluations: dict[str, dict[int, Evaluation]] = {}
    for stage in [wanted.evaluation, *(stage for stage, _ in map(wanted.source_of, wanted.figures))]:
        files = {seed: run / "eval" / f"{stage}.json" for seed, run in runs.items() if seed not in shorter}
        evaluations[stage] = {seed: read_with_sets(file) for seed, file in files.items() if file.is_file()}
    stopped = {seed: _missed_gate(run) for seed, run in runs.items() if seed not in evaluated}
    return _Arm(
        evaluations=evaluations,
        tokens={seed: sum(row.get("tokens_trained") or 0 for row in rows) for seed, rows in metrics.items()},
        stopped={seed: claim for seed, claim in stopped.items() if claim},
        shorter=shorter,
    )


def _missed_gate(run: Path) -> str:
    """The claim of the gate at which a run ended; empty without one."""
    manifest = run / "manifest.json"
    gates = read_object(manifest).get("gates", {}) if manifest.is_file() else {}
    missed = [f"{name}: {gate['claim']}" for name, gate in gates.items() if not gate["passes"]]
    return missed[-1] if missed else ""


def _levels(wanted: ArmTableRecipe, of_arm: ByStage) -> dict[str, Measured]:
    """The figures of the stages that the arm has."""
    sources = {name: wanted.source_of(name) for name in wanted.figures}
    return {name: _level(key, list(of_arm[stage].values())) for name, (stage, key) in sources.items() if of_arm[stage]}


def _level(key: str, evaluations: Sequence[Evaluation]) -> Measured:
    measured = [measured_of(evaluation.get(key)) for evaluation in evaluations]
    known = [one.value for one in measured if one is not None]
    if len(known) < len(measured):
        return UNMEASURED
    if len(measured) == 1:
        return measured[0] or UNMEASURED
    tables = set_tables(key, [[evaluation["records"] for evaluation in evaluations]])
    over_texts = level(*(runs for [runs] in tables), is_share=figure(key).is_share)
    if over_texts.n:
        return over_texts
    return replace(level([[value] for value in known], is_share=False), n=len(known))


def _certified(evaluations: Sequence[Evaluation]) -> int | None:
    given = [one["certificate"]["passes"] for one in evaluations if "certificate" in one]
    return sum(given) if given else None


def _apart(key: str, ours: Mapping[int, Evaluation], theirs: Mapping[int, Evaluation]) -> Difference | None:
    """Ours minus theirs over shared seeds and texts."""
    seeds = [seed for seed in ours if seed in theirs]
    if not seeds:
        return None
    tables = set_tables(key, [[side[seed]["records"] for seed in seeds] for side in (ours, theirs)])
    apart = [[minus(*runs) for runs in zip(one, other, strict=True)] for one, other in tables]  # [set][seed][text]
    sets = tables if len(seeds) == 1 else [[runs, [[0.0] * len(runs[0])]] for runs in apart]
    return difference(*sets, is_share=figure(key).is_share)
