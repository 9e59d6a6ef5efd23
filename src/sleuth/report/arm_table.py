"""The arms of a file beside each other: what was measured of each, over its seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from sleuth.evaluation.arms import Difference, difference, level
from sleuth.evaluation.intervals import UNMEASURED, Measured
from sleuth.evaluation.paired import FIGURES, MEANS, Evaluation, Record, by_question, question_value
from sleuth.evaluation.power import clusters_for_difference
from sleuth.recipe.arms import ArmsRecipe
from sleuth.report.figures import measured_of
from sleuth.report.run_files import read_object
from sleuth.runs.metrics import MetricsFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRow:
    """An arm as far as it was run: `figures` over its `seeds`, the tokens that losses saw (their mean over seeds), and
    where the table compares with another arm, how much more of the first figure there is here. `needed` texts would
    show a difference of that size in four of five cases, if it varies from text to text as here."""

    name: str
    seeds: tuple[int, ...]
    figures: Mapping[str, Measured]
    tokens_trained: float
    over: Difference | None
    needed: int | None

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        over = self.over and self.over.measured.as_json() | {"p": self.over.p, "test": self.over.test}
        return {
            "seeds": list(self.seeds),
            "tokens_trained": self.tokens_trained,
            "figures": {name: figure.as_json() for name, figure in self.figures.items()},
            "over": over,
            "texts_needed": self.needed,
        }


def arm_folder(root: Path, seed: int, arm: str) -> Path:
    """Where an arm is run with a seed."""
    return root / f"seed-{seed}" / arm


def arm_table(recipe: ArmsRecipe, root: Path) -> list[ArmRow]:
    """A row for every arm that was measured with one of the seeds. Levels and differences are over texts and, where
    there are several seeds, over these too, as in `sleuth.evaluation.arms`; a figure that no text has by itself is the
    mean of the seeds, with an interval over them."""
    wanted = recipe.table
    found = {arm.name: _evaluations(recipe, root, arm.name) for arm in recipe.arm}
    rows = []
    for name, of_arm in found.items():
        if not of_arm:
            continue
        key = wanted.figures[0]
        base = found[wanted.against] if wanted.against not in (None, name) else {}
        apart = _apart(key, list(of_arm.values()), list(base.values())) if base else []
        rows.append(
            ArmRow(
                name=name,
                seeds=tuple(of_arm),
                figures={figure: _level(figure, list(of_arm.values())) for figure in wanted.figures},
                tokens_trained=fmean(_tokens_trained(arm_folder(root, seed, name)) for seed in of_arm),
                over=difference(*apart, is_share=_is_share(key)) if apart else None,
                needed=_needed(*apart) if apart else None,
            )
        )
    return rows


def _evaluations(recipe: ArmsRecipe, root: Path, arm: str) -> dict[int, Evaluation]:
    """By seed, where there is one."""
    files = {seed: arm_folder(root, seed, arm) / "eval" / f"{recipe.table.evaluation}.json" for seed in recipe.seeds}
    return {seed: read_object(file) for seed, file in files.items() if file.is_file()}


def _level(key: str, evaluations: Sequence[Evaluation]) -> Measured:
    told = [measured_of(evaluation.get(key)) for evaluation in evaluations]
    known = [one.value for one in told if one is not None]
    if len(known) < len(told):
        return UNMEASURED
    if len(told) == 1:
        return told[0] or UNMEASURED
    runs = [_by_text(key, evaluation) for evaluation in evaluations]
    texts = [text for text in runs[0] if all(text in run for run in runs)]
    if any(run[text] is not None for run in runs for text in texts):
        return level([[run[text] for text in texts] for run in runs], is_share=_is_share(key))
    return replace(level([[value] for value in known], is_share=False), n=len(known))


def _apart(key: str, ours: Sequence[Evaluation], theirs: Sequence[Evaluation]) -> list[list[list[float | None]]]:
    """`[side][seed][text]` over the texts that all have."""
    sides = [[_by_text(key, evaluation) for evaluation in side] for side in (ours, theirs)]
    texts = [text for text in sides[0][0] if all(text in run for side in sides for run in side)]
    return [[[run[text] for text in texts] for run in side] for side in sides]


def _needed(ours: Sequence[Sequence[float | None]], theirs: Sequence[Sequence[float | None]]) -> int | None:
    columns = zip(zip(*ours, strict=True), zip(*theirs, strict=True), strict=True)
    whole = [(one, other) for one, other in columns if None not in (*one, *other)]
    return clusters_for_difference([_mean(one) - _mean(other) for one, other in whole])


def _mean(values: Sequence[float | None]) -> float:
    return fmean(value for value in values if value is not None)


def _by_text(key: str, evaluation: Evaluation) -> dict[str, float | None]:
    """What each text, or question, contributes to a figure: the mean over its samples."""
    found = {}
    for text, records in by_question(evaluation.get("records", ())).items():
        values = [value for record in records if (value := _value(key, record)) is not None]
        found[text] = fmean(values) if values else None
    return found


def _value(key: str, record: Record) -> float | None:
    return record["figures"].get(key) if "figures" in record else question_value(key, record)


def _is_share(key: str) -> bool:
    """Of 0 and 1, or means of those. `right_over_ARM` is a difference of two."""
    of_thoughts = key.startswith("right_") and not key.startswith("right_over_")
    return of_thoughts or (key in FIGURES and key not in MEANS)


def _tokens_trained(run: Path) -> int:
    return sum(row.get("tokens_trained") or 0 for row in MetricsFile(run / "metrics.jsonl").rows())
