"""The figures of refiners: of an answer's citations, and of what a refiner made of an agent's results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from sleuth.cite.dialect import refines
from sleuth.evaluation.figures import Figure, Record
from sleuth.evaluation.intervals import Measured, bootstrap_f1, bootstrap_mean, bounded_mean
from sleuth.types import Score, StepFigure, Task


def _entry(name: str, task: Task, score: Score) -> dict[str, Any]:
    """A part of an answer that was judged, None where it lacks this one."""
    return {name: score.parts.get(name)} if "claims" in score.parts else {}


def _wrong_abstention(name: str, task: Task, score: Score) -> dict[str, Any]:
    if "claims" not in score.parts:
        return {}
    answerable = task.evidence is not None and task.evidence.answerable is True
    return {name: score.parts.get("abstained") if answerable else None}


def _abstention(record: Record) -> tuple[float | None, float | None]:
    """(abstained, should have abstained), each 1 or 0; both None if either is unknown."""
    if (rightly := record.get("right_abstention")) is not None:
        return rightly, 1.0
    wrongly = record.get("wrong_abstention")
    return (None, None) if wrongly is None else (wrongly, 0.0)


def _abstention_f1(pairs: Sequence[tuple[float | None, float | None]], questions: Sequence[str]) -> Measured:
    return bootstrap_f1([one for one, _ in pairs], [other for _, other in pairs], questions)


def outcome(record: Record) -> str:
    """The mode of an answer: right if a supported claim holds the answer or if it rightly abstains. The evidence is
    given, so that its other answers are malformed, a wrong reading, or wrong and nobody can say why."""
    if record["note"] in ("malformed", "no_answer"):
        return "malformed"
    if record["grounded"] is None:
        return "wrong_untold"
    return "right" if record["grounded"] else "wrong_reading"


_share = partial(Figure, dialects=refines, alone=True, in_steps=True, entry=_entry)
_mean = partial(_share, interval=bounded_mean)

FIGURES = (
    _mean(
        "citation_recall",
        "Claims that their citations support",
        "Share of an answer's claims that their citations support together.",
    ),
    _mean(
        "citation_precision",
        "Citations that are needed",
        "Share of its citations that support their claim and are needed for it.",
    ),
    _mean(
        "citation_f1",
        "F1 of the citations",
        "Harmonic mean of citation recall and citation precision.",
        short="F1 of the citations",
        required=True,
    ),
    _mean(
        "citation_precision_concatenated",
        "Claims supported at all",
        "Share of its claims that all citations of a claim at once support.",
    ),
    _mean("valid_ids", "Cited ids that exist", "Share of cited ids that exist."),
    _mean(
        "invented_ids",
        "Cited ids that do not exist",
        "Share of cited ids that do not exist, over answers that cite any.",
    ),
    _mean(
        "claim_precision",
        "Citations that are right, by the table",
        "Share of citations that are right, by the data's own table of claims and snippets.",
    ),
    _mean(
        "claim_recall",
        "Asked claims with a right citation, by the table",
        "Share of the claims asked for that the answer makes with a right citation, by that table.",
    ),
    _mean("claim_f1", "F1 of the claims, by the table", "Harmonic mean of the two.", short="F1 of the claims"),
    _mean(
        "off_query", "Claims not asked for", "Share of claims that a cited snippet states and that were not asked for."
    ),
    _share(
        "grounded",
        "Right answer in a supported claim",
        "Share of answers in which a supported claim contains a golden answer, or that rightly abstain.",
    ),
    _share(
        "right_abstention", "Abstains where nothing answers", "Share of abstentions on questions without an answer."
    ),
    _share(
        "wrong_abstention",
        "Abstains where something does",
        "Share of abstentions on questions with an answer.",
        in_steps=False,
        entry=_wrong_abstention,
    ),
    _share(
        "abstention_f1",
        "F1 of abstaining",
        "F1 of abstaining on questions without an answer.",
        value=_abstention,
        interval=_abstention_f1,
        in_steps=False,
        used="files",
    ),
    _mean("padding", "Words without a citation", "Share of an answer's words that are in no cited claim."),
    _share("claims", "Claims", "Claims with a citation in an answer.", unit="claims", interval=bootstrap_mean),
)

STEPS = (
    StepFigure("citation_gain", "How much likelier a snippet made the claim that cites it, in nats.", part="Credit"),
    StepFigure("idle_citations", "Share of citations that gained no more than the margin.", part="Credit"),
    StepFigure("honest_paid", "What the reward pays honest answers, beside the known tricks.", part="Judges"),
    StepFigure("tricks_won", "Names of the tricks that are paid no less.", part="Judges"),
)
