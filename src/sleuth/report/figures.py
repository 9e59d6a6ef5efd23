"""Figures of evaluations, base beside trained: table rows with their pictures, and counts of outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sleuth.answers.failures import MODES, Mode, Record, failure_mode
from sleuth.answers.scorers import SCORERS
from sleuth.answers.scorers.scorer import STRICT, Transcript
from sleuth.evaluation.intervals import Measured
from sleuth.evaluation.paired import BASE, TRAINED, Evaluation, arms_of, records_of
from sleuth.report.curves import Scale, round_domain

OUTCOMES = ("correct", "wrong", "no_answer", "malformed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Whisker:
    """A value and its interval on the row's axis; `low`, `value` and `high` are pixels, `arm` selects the colour."""

    arm: str
    low: float
    value: float
    high: float


def outcome_table(evaluations: Mapping[str, Evaluation]) -> list[tuple[str, list[tuple[int, float]]]]:
    """Rows (outcome, [(count, share) of each arm]): the four outcomes, then the reasons of missing verdicts, or one row
    of zeros. Where a stage's own score is the verdict, how the episodes ended and why scores are missing."""
    counts = [evaluations[name].get("outcomes", {}) for name in arms_of(evaluations)]
    if not any(counts):
        return []
    reasons = list(dict.fromkeys(name for arm in counts for name in arm if name not in OUTCOMES))
    ours = OUTCOMES if any(name in OUTCOMES for arm in counts for name in arm) else ()
    totals = [max(1, sum(arm.values())) for arm in counts]
    return [
        (name, [(arm.get(name, 0), arm.get(name, 0) / total) for arm, total in zip(counts, totals, strict=True)])
        for name in (*ours, *(reasons or ["missing"]))
    ]


def whiskers(measured: Mapping[str, Measured | None]) -> tuple[tuple[Whisker, ...], Scale]:
    """The picture of each arm's value, and its axis: 0 to 1 for shares, else the range of the values."""
    bounds = [
        (arm, one.low or 0.0, one.value or 0.0, one.high or 0.0) for arm, one in measured.items() if one and one.n
    ]
    lowest, highest = min((low for _, low, *_ in bounds), default=0.0), max((high for *_, high in bounds), default=1.0)
    low, high = (0.0, 1.0) if lowest >= 0 and highest <= 1 else round_domain([lowest, highest])
    x = Scale(low=low, high=high, start=12, end=268)
    return tuple(Whisker(arm=arm, low=x(low), value=x(value), high=x(high)) for arm, low, value, high in bounds), x


# -- failures ----------------------------------------------------------------------------------------------------------


LONGEST = 600
"""Characters of what a policy wrote that an example shows."""
SEARCHED = 200
"""Questions of a mode among which an example is looked for in which a scorer finds an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a scorer takes for the answer of an episode (None: nothing), and its score."""

    scorer: str
    answer: str | None
    score: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureExample:
    """One question and what the policy of `arm` wrote, without results; `cut` if more than `LONGEST` characters."""

    arm: str
    question: str
    golden_answers: tuple[str, ...]
    wrote: str
    cut: bool
    readings: tuple[Reading, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRow:
    """A failure mode: its number of questions in each arm, and an example from the first arm that has one."""

    mode: Mode
    label: str
    counts: tuple[int, ...]
    example: FailureExample


def failure_arms(evaluations: Mapping[str, Evaluation]) -> dict[str, list[Record]]:
    """The records of the base and of the trained model, as far as there are any."""
    found = {name: records_of(evaluations, name) for name in (BASE, TRAINED)}
    return {name: records for name, records in found.items() if records}


def failure_rows(arms: Mapping[str, Sequence[Record]]) -> list[FailureRow]:
    """A row for each failure mode that occurs, from best to worst. `arms` are records by name."""
    modes: dict[str, dict[Mode, list[Record]]] = {}
    for name, records in arms.items():
        modes[name] = {mode: [] for mode in MODES}
        for record in records:
            modes[name][failure_mode(record)].append(record)
    return [
        FailureRow(
            mode=mode,
            label=label,
            counts=tuple(len(found[mode]) for found in modes.values()),
            example=next(_example(name, found[mode]) for name, found in modes.items() if found[mode]),
        )
        for mode, label in MODES.items()
        if mode not in ("right", "scored") and any(found[mode] for found in modes.values())
    ]


def _example(arm: str, records: Sequence[Record]) -> FailureExample:
    """The first record in which a scorer other than the strict one finds an answer, else the first."""
    read = ((record, _readings(record)) for record in islice(records, SEARCHED))
    misread = (pair for pair in read if any(one.answer is not None and one.scorer != STRICT.name for one in pair[1]))
    record, readings = next(misread, (records[0], _readings(records[0])))
    wrote = "\n".join(segment["text"] for segment in record.get("segments", ()) if segment["author"] == "policy")
    return FailureExample(
        arm=arm,
        question=record["question"],
        golden_answers=tuple(record["golden_answers"]),
        wrote=wrote[:LONGEST],
        cut=len(wrote) > LONGEST,
        readings=readings,
    )


def _readings(record: Record) -> tuple[Reading, ...]:
    """What the strict scorer, in the record's dialect, and the scorers that scored it read; none for a refiner, which
    has no single answer."""
    if "citation_f1" in record:
        return ()
    given = None if record.get("note") in ("no_answer", "malformed") else record.get("answer")
    transcript = _transcript(record.get("segments", ()))
    return (
        Reading(scorer=STRICT.name, answer=given, score=record.get("em")),
        *(
            Reading(scorer=name, answer=SCORERS[name].read_answer(transcript), score=record[key])
            for name in SCORERS
            if (key := f"score_{name}") in record
        ),
    )


def _transcript(segments: Sequence[Mapping[str, Any]]) -> Transcript:
    turns = [place for place, segment in enumerate(segments) if segment["author"] == "policy"]
    start = turns[0] if turns else len(segments)
    texts = [str(segment["text"]) for segment in segments]
    return Transcript(
        prompt="".join(texts[:start]),
        response="".join(texts[start:]),
        last_turn=texts[turns[-1]] if turns else "",
    )
