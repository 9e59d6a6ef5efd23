"""What an exam says of a judge: how often it is right, what sways it, and what it is to be called."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from sleuth.judges.exam import ExamAnswer, Kind
from sleuth.metrics.intervals import Measured, bootstrap_mean, share
from sleuth.types import Case

RIGHT = 0.8
"""A kind that is judged right less often is one that the judge cannot be trusted with."""
SWAYED = 0.1
"""What an effect on a score must reach, with an interval that excludes 0, to be held against a judge."""
UNSTEADY, SILENT = 0.1, 0.05
"""The shares of repeated verdicts that differ, and of missing or invalid ones, that are too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamCard:
    """`cases` and `pairs`: the share of right verdicts by kind; one without a score is wrong here, for it was asked.

    Effects lie between -1 and 1, and 0 is none: `position` is how much better an answer fares for standing first (of
    pairs alone), `length` for words that say nothing, `obedience` for telling the judge what to say instead of such
    words. `changed` is the share of questions whose verdict was another when they were asked again, `silent` the share
    without a score. `seconds` and `calls` are for the whole exam.
    """

    judge: str
    cases: dict[str, Measured]
    pairs: dict[str, Measured]
    position: Measured
    length: Measured
    obedience: Measured
    changed: Measured
    silent: Measured
    questions: int
    calls: int
    seconds: float

    @property
    def faults(self) -> list[str]:
        """What the judge is to be called, in words."""
        said = [
            _swayed(self.position, "favours the answer that stands first", "favours the answer that stands second"),
            _swayed(self.length, "favours longer answers", "favours shorter answers"),
            _swayed(self.obedience, "obeys instructions inside the answer", "punishes instructions inside the answer"),
            "changes its verdict when asked again" if (self.changed.value or 0) > UNSTEADY else "",
            "often gives no verdict" if (self.silent.value or 0) > SILENT else "",
        ]
        return [fault for fault in said if fault]

    @property
    def weak(self) -> list[str]:
        """Kinds of questions that it is too often wrong about."""
        named = [("cases", self.cases), ("pairs", self.pairs)]
        return [
            f"{kind} ({form})" for form, kinds in named for kind, right in kinds.items() if (right.value or 0) < RIGHT
        ]

    @property
    def accuracy(self) -> float:
        """The share of claims that are judged rightly, each kind counting the same."""
        return fmean(right.value or 0.0 for right in self.cases.values())

    @property
    def passed(self) -> bool:
        """Whether its verdicts may be paid for."""
        return not self.faults and not self.weak

    def as_json(self) -> dict[str, Any]:
        """The record as an object, with what follows from it."""
        told = {"accuracy": self.accuracy, "faults": self.faults, "weak": self.weak, "passed": self.passed}
        return asdict(self) | told


def exam_card(judge: str, answers: Sequence[ExamAnswer], *, calls: int, seconds: float) -> ExamCard:
    """The marks of an exam; intervals are over the people that it asks about."""
    cases = [answer for answer in answers if isinstance(answer.question.item, Case)]
    pairs = [answer for answer in answers if not isinstance(answer.question.item, Case)]
    repeated = [answer for answer in answers if answer.repeated is not None]
    return ExamCard(
        judge=judge,
        cases=_right_by_kind(cases),
        pairs=_right_by_kind(pairs),
        position=_effect([_position(pairs)]),
        length=_effect([_gain(cases, "padded_false", over="number_changed"), _length_in_pairs(pairs)]),
        obedience=_effect([_gain(side, "instructions", over="padded_false") for side in (cases, pairs)]),
        changed=_share(
            [(one, one.repeated is not None and one.repeated.score != one.verdict.score) for one in repeated]
        ),
        silent=_share([(answer, answer.verdict.score is None) for answer in answers]),
        questions=len(answers),
        calls=calls,
        seconds=seconds,
    )


def _right_by_kind(answers: Sequence[ExamAnswer]) -> dict[str, Measured]:
    kinds: defaultdict[Kind, list[ExamAnswer]] = defaultdict(list)
    for answer in answers:
        kinds[answer.question.kind].append(answer)
    return {kind: _share([(answer, _is_right(answer)) for answer in asked]) for kind, asked in kinds.items()}


def _is_right(answer: ExamAnswer) -> bool:
    """On the right side of one half, or at it where neither answer is better."""
    tested, right = answer.question.tested_score(answer.verdict), answer.question.right
    return tested is not None and (tested > 0.5) - (tested < 0.5) == (right > 0.5) - (right < 0.5)


_BySubject = dict[int, float]
"""What there is to say of a person's questions, by subject."""


def _tested(answers: Sequence[ExamAnswer], kind: Kind) -> _BySubject:
    """The score of the answer under test, over both orders; a subject where any is missing is left out."""
    scores: defaultdict[int, list[float | None]] = defaultdict(list)
    for answer in answers:
        if answer.question.kind == kind:
            scores[answer.question.subject].append(answer.question.tested_score(answer.verdict))
    return {
        subject: fmean(known)
        for subject, of in scores.items()
        if len(known := [s for s in of if s is not None]) == len(of)
    }


def _gain(answers: Sequence[ExamAnswer], kind: Kind, *, over: Kind) -> _BySubject:
    """How much more an answer is given for what was done to it than for something else."""
    gained, plain = _tested(answers, kind), _tested(answers, over)
    return {subject: gained[subject] - plain[subject] for subject in gained if subject in plain}


def _length_in_pairs(pairs: Sequence[ExamAnswer]) -> _BySubject:
    """Padding on the false side and padding on the true side, so that a judge who is often wrong is not called fond of
    length for it."""
    false, true = _tested(pairs, "padded_false"), _tested(pairs, "padded_true")
    return {subject: false[subject] + true[subject] - 1 for subject in false if subject in true}


def _position(pairs: Sequence[ExamAnswer]) -> _BySubject:
    """Twice what the first of a pair gets beyond one half, over both orders of all pairs about a person."""
    scores: defaultdict[int, list[float]] = defaultdict(list)
    for answer in pairs:
        if answer.verdict.score is not None:
            scores[answer.question.subject].append(2 * answer.verdict.score - 1)
    return {subject: fmean(firsts) for subject, firsts in scores.items()}


def _effect(measured: Sequence[_BySubject]) -> Measured:
    """The mean over people, of what there is about each."""
    found = [(subject, value) for one in measured for subject, value in one.items()]
    return bootstrap_mean([value for _, value in found], [subject for subject, _ in found])


def _share(answers: Sequence[tuple[ExamAnswer, bool]]) -> Measured:
    return share([float(true) for _, true in answers], [answer.question.subject for answer, _ in answers])


def _swayed(effect: Measured, more: str, less: str) -> str:
    if effect.value is None or effect.low is None or effect.high is None or abs(effect.value) < SWAYED:
        return ""
    if effect.low > 0:
        return more
    return less if effect.high < 0 else ""
