"""The table of a sweep: the figures of each arm over its seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from sleuth.metrics.arms import Difference, difference, level
from sleuth.metrics.intervals import UNMEASURED, Measured
from sleuth.metrics.paired import FIGURES, MEANS, Evaluation, Record, by_question, question_value
from sleuth.metrics.significance import clusters_for_difference
from sleuth.recipe.sweep import ArmTableRecipe, SweepRecipe
from sleuth.report.figures import measured_of
from sleuth.report.run_files import read_object
from sleuth.runs.metrics import MetricsFile
from sleuth.types import SleuthError


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRow:
    """An arm: `figures` over its finished `seeds`, the trained tokens (mean over seeds), and the difference `over` the
    table's other arm in the first figure. With `needed` texts a difference of that size would be found with a power of
    0.8. `certified` seeds passed the evaluation's certificate; None without certificates."""

    name: str
    seeds: tuple[int, ...]
    figures: Mapping[str, Measured]
    tokens_trained: float
    over: Difference | None
    needed: int | None
    certified: int | None

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "seeds": list(self.seeds),
            "tokens_trained": self.tokens_trained,
            "figures": {name: figure.as_json() for name, figure in self.figures.items()},
            "over": self.over and self.over.as_json(),
            "texts_needed": self.needed,
            "certified": self.certified,
        }


def arm_folder(root: Path, seed: int, arm: str) -> Path:
    """The run folder of an arm and a seed."""
    return root / f"seed-{seed}" / arm


def arm_table(recipe: SweepRecipe, root: Path) -> list[ArmRow]:
    """A row for every arm that was evaluated with at least one seed.

    Levels and differences are over texts and, with several seeds, over these too, as in `sleuth.metrics.arms`.
    Differences are paired by text and seed, because arms share their first stages. A figure without values by text is
    the mean over seeds, with an interval over them. Raises SleuthError for a figure that no evaluation has."""
    wanted = recipe.table
    by_arm = {arm.name: _evaluations(recipe, root, arm.name) for arm in recipe.arm}
    _require_figures(wanted, [one for of_arm in by_arm.values() for one in of_arm.values()])
    rows = []
    for name, of_arm in by_arm.items():
        if not of_arm:
            continue
        base = by_arm[wanted.against] if wanted.against not in (None, name) else {}
        over, needed = _apart(wanted.figures[0], of_arm, base)
        rows.append(
            ArmRow(
                name=name,
                seeds=tuple(of_arm),
                figures={figure: _level(figure, list(of_arm.values())) for figure in wanted.figures},
                tokens_trained=fmean(_tokens_trained(arm_folder(root, seed, name)) for seed in of_arm),
                over=over,
                needed=needed,
                certified=_certified(list(of_arm.values())),
            )
        )
    return rows


def _require_figures(wanted: ArmTableRecipe, evaluations: Sequence[Evaluation]) -> None:
    known = {name for one in evaluations for name, value in one.items() if measured_of(value)}
    lacking = [name for name in wanted.figures if name not in known]
    if evaluations and lacking:
        raise SleuthError(
            f"table.figures: no {wanted.evaluation} has {lacking[0]}; there are {', '.join(sorted(known))}"
        )


def _evaluations(recipe: SweepRecipe, root: Path, arm: str) -> dict[int, Evaluation]:
    """The finished evaluations of an arm by seed."""
    files = {seed: arm_folder(root, seed, arm) / "eval" / f"{recipe.table.evaluation}.json" for seed in recipe.seeds}
    return {seed: read_object(file) for seed, file in files.items() if file.is_file()}


def _level(key: str, evaluations: Sequence[Evaluation]) -> Measured:
    measured = [measured_of(evaluation.get(key)) for evaluation in evaluations]
    known = [one.value for one in measured if one is not None]
    if len(known) < len(measured):
        return UNMEASURED
    if len(measured) == 1:
        return measured[0] or UNMEASURED
    runs = [_by_text(key, evaluation) for evaluation in evaluations]
    if texts := _shared(runs):
        return level([[run[text] for text in texts] for run in runs], is_share=_is_share(key))
    return replace(level([[value] for value in known], is_share=False), n=len(known))


def _certified(evaluations: Sequence[Evaluation]) -> int | None:
    given = [one["certificate"]["passes"] for one in evaluations if "certificate" in one]
    return sum(given) if given else None


def _apart(
    key: str, ours: Mapping[int, Evaluation], theirs: Mapping[int, Evaluation]
) -> tuple[Difference | None, int | None]:
    """Ours minus theirs over shared seeds and texts, and the number of texts that would show such a difference."""
    seeds = [seed for seed in ours if seed in theirs]
    sides = [[_by_text(key, side[seed]) for seed in seeds] for side in (ours, theirs)]
    texts = _shared([*sides[0], *sides[1]])
    if not texts:
        return None, None
    one, other = ([[run[text] for text in texts] for run in side] for side in sides)
    apart = [[a - b for a, b in zip(*runs, strict=True)] for runs in zip(one, other, strict=True)]  # [seed][text]
    needed = clusters_for_difference([fmean(of_text) for of_text in zip(*apart, strict=True)])
    if len(seeds) == 1:
        return difference(one, other, is_share=_is_share(key)), needed
    return difference(apart, [[0.0] * len(texts)], is_share=_is_share(key)), needed


def _by_text(key: str, evaluation: Evaluation) -> dict[str, float]:
    """The value of a figure for each text or question that has it: the mean over its samples."""
    grouped = by_question(evaluation.get("records", ()))
    values_of = {text: [_value(key, record) for record in records] for text, records in grouped.items()}
    known = {text: [value for value in values if value is not None] for text, values in values_of.items()}
    return {text: fmean(values) for text, values in known.items() if values}


def _shared(runs: Sequence[Mapping[str, float]]) -> list[str]:
    """The texts that all runs have, in the order of the first."""
    return [text for text in runs[0] if all(text in run for run in runs)] if runs else []


def _value(key: str, record: Record) -> float | None:
    return record["figures"].get(key) if "figures" in record else question_value(key, record)


def _is_share(key: str) -> bool:
    """Of 0 and 1, or means of those. `right_over_ARM` is a difference of two."""
    of_thoughts = key.startswith("right_") and not key.startswith("right_over_")
    return of_thoughts or (key in FIGURES and key not in MEANS)


def _tokens_trained(run: Path) -> int:
    return sum(row.get("tokens_trained") or 0 for row in MetricsFile(run / "metrics.jsonl").rows())
