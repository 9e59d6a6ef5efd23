"""The figures of a refiner's evaluation file from its finished episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sleuth.evaluation.intervals import Measured, bootstrap_f1, bootstrap_mean, share
from sleuth.evaluation.metrics import Record, response_tokens
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
"""Each figure of an answer's citations, with the function that computes its mean and interval."""


def citation_figures(records: Sequence[Record]) -> dict[str, Measured]:
    """The figures of a refiner's evaluation, each over the tasks that can have it; siblings of one task count as one
    draw.

    - `citation_recall`, `citation_precision`, `citation_f1`, `citation_precision_concatenated`, `valid_ids`: as in
      `sleuth.cite.measure`; a right abstention has none of them;
    - `invented_ids`: the share of an answer's ids that do not exist, over answers that cite any;
    - `claim_precision`, `claim_recall`, `claim_f1`, `off_query`: likewise, against the data's own table of what its
      snippets state, over the questions that these answer;
    - `grounded`: the share of answers in which a supported claim contains a golden answer, or that rightly abstain;
    - `right_abstention` and `wrong_abstention`: the shares of abstentions on questions without and with an answer;
      `abstention_f1`: the F1 of abstaining on those without;
    - `well_formed`, `padding` (the share of uncited words), `claims`, `response_tokens_mean`;
    - `missing`: the share of episodes without a verdict.
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
    """The value of a figure for one answer; None if it has none."""
    if name == "wrong_abstention":
        answerable = task.evidence is not None and task.evidence.answerable is True
        return score.parts.get("abstained") if answerable else None
    return score.parts.get(name)


def _abstention(task: Task, score: Score) -> tuple[float | None, float | None]:
    """(abstained, should have abstained), each 1 or 0; both None if either is unknown."""
    answerable = task.evidence.answerable if task.evidence else None
    abstained = score.parts.get("abstained")
    return (None, None) if answerable is None or abstained is None else (abstained, float(not answerable))


def _missing(task: Task, trajectory: Trajectory, score: Score) -> float:
    return float(score.value is None)
