"""Finished episodes of a refiner to the figures of an evaluation file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sleuth.metrics.intervals import Measured, bootstrap_f1, bootstrap_mean, share
from sleuth.metrics.metrics import Record, response_tokens
from sleuth.types import Score, Task, Trajectory

FIGURES: dict[str, Callable[..., Measured]] = {
    "citation_recall": bootstrap_mean,
    "citation_precision": bootstrap_mean,
    "citation_f1": bootstrap_mean,
    "citation_precision_concatenated": bootstrap_mean,
    "valid_ids": bootstrap_mean,
    "invented_ids": bootstrap_mean,
    "claim_precision": bootstrap_mean,
    "claim_recall": bootstrap_mean,
    "claim_f1": bootstrap_mean,
    "off_query": bootstrap_mean,
    "grounded": share,
    "right_abstention": share,
    "wrong_abstention": share,
    "well_formed": share,
    "padding": bootstrap_mean,
    "claims": bootstrap_mean,
}
"""Each figure of an answer's citations, and how its mean is measured."""


def citation_figures(records: Sequence[Record]) -> dict[str, Measured]:
    """The figures of a refiner's evaluation, each over the tasks that can give it; siblings of one task count as one
    draw.

    - `citation_recall`, `citation_precision`, `citation_f1`, `citation_precision_concatenated`, `valid_ids`: as in
      `sleuth.rewards.citation.measure`; a right abstention has none of them;
    - `invented_ids`: the share of an answer's ids that do not exist, over the answers that cite any;
    - `claim_precision`, `claim_recall`, `claim_f1`, `off_query`: as in `sleuth.rewards.citation.measure`, by the data's
      own table of what its snippets state, over the questions that these answer;
    - `grounded`: answers in which a supported claim holds a golden answer, or that rightly abstain;
    - `right_abstention`: of the questions without an answer, those that the policy abstained from;
      `wrong_abstention`: of those with one, likewise; `abstention_f1`: the F1 of abstaining where nothing answers;
    - `well_formed`, `padding` (words behind which no citation stands), `claims`, `response_tokens_mean`;
    - `missing`: episodes without a verdict.
    """
    clusters = [task.id for task, _, _ in records]
    figures = {
        name: measured([citation_value(name, task, score) for task, _, score in records], clusters)
        for name, measured in FIGURES.items()
    }
    abstained, unanswerable = zip(*(_abstention(task, score) for task, _, score in records), strict=True)
    figures["abstention_f1"] = bootstrap_f1(abstained, unanswerable, clusters)
    figures["response_tokens_mean"] = bootstrap_mean([response_tokens(*record) for record in records], clusters)
    figures["missing"] = share([_missing(*record) for record in records], clusters)
    return {name: figure for name, figure in figures.items() if figure.n or name in ("citation_f1", "missing")}


def citation_value(name: str, task: Task, score: Score) -> float | None:
    """What one answer contributes to a figure; None where it has no part in it."""
    if name == "wrong_abstention":
        answerable = task.evidence is not None and task.evidence.answerable is True
        return score.parts.get("abstained") if answerable else None
    return score.parts.get(name)


def _abstention(task: Task, score: Score) -> tuple[float | None, float | None]:
    """Whether the policy abstained, and whether it should have; None where either is not known."""
    answerable = task.evidence.answerable if task.evidence else None
    abstained = score.parts.get("abstained")
    return (None, None) if answerable is None or abstained is None else (abstained, float(not answerable))


def _missing(task: Task, trajectory: Trajectory, score: Score) -> float:
    return float(score.value is None)
