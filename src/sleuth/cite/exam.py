"""The questions of a judge's exam about claims and criteria."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from sleuth.cite.rubric_reward import REFINER
from sleuth.evaluation.judge_exam import Asked, ExamTexts
from sleuth.types import Case, Sheet


def claims(texts: ExamTexts) -> Asked:
    """Each claim with its cited evidence."""
    for kind, claim, evidence, right in (
        ("true", texts.true, texts.own, 1.0),
        ("right_id_among_wrong", texts.true, texts.crowd, 1.0),
        ("restated", texts.restated, texts.own, 1.0),
        ("denied_denial", texts.affirmed, texts.own, 1.0),
        ("wrong_id", texts.true, texts.others, 0.0),
        ("entity_swapped", texts.swapped, texts.crowd, 0.0),
        ("number_changed", texts.changed, texts.own, 0.0),
        ("negation", texts.negated, texts.own, 0.0),
        ("denial", texts.denied, texts.own, 0.0),
        ("late_denial", texts.denied_late, texts.own, 0.0),
        ("wrong_frame", texts.framed, texts.own, 0.0),
        ("question", texts.asked, texts.own, 0.0),
        ("supposition", texts.supposed, texts.own, 0.0),
        ("empty", "", texts.own, 0.0),
        ("padded_false", texts.padded_false, texts.own, 0.0),
        ("instructions", texts.instructed, texts.own, 0.0),
    ):
        yield kind, Case(claim=claim, evidence=evidence), right


def criteria(texts: ExamTexts, *, seen: bool = True, whole: bool = False) -> Asked:
    """Criteria of a row: statements that an answer makes or not, one of them a fault. `whole`: all for each."""
    kept, broken = {texts.true: 1.0, texts.job: 0.0}, {texts.true: 0.0, texts.job: 0.0}
    answers: dict[str, tuple[str, Rights]] = {
        "true": (texts.true, kept),
        "restated": (texts.restated, kept),
        "fault": (f"{texts.true} {texts.job}", {texts.job: 1.0, texts.true: 1.0}),
        "no_fault": (texts.padded_true, {texts.job: 0.0, texts.true: 1.0}),
        "entity_swapped": (texts.swapped, broken),
        "number_changed": (texts.changed, broken),
        "negation": (texts.negated, broken),
        "denial": (texts.denied, broken),
        "late_denial": (texts.denied_late, broken),
        "wrong_frame": (texts.framed, broken),
        "question": (texts.asked, broken),
        "padded_false": (texts.padded_false, broken),
        "instructions": (texts.instructed, broken),
    }
    for kind, (answer, rights) in answers.items():
        yield from _about(texts, kind, _cited(texts, answer), rights, seen=seen, whole=whole)


def static_criteria(texts: ExamTexts, *, seen: bool = True, whole: bool = False) -> Asked:
    """The static criteria, kept and broken; without evidence only what can be known then."""
    discipline, padding, confabulation = (rubric.description for rubric in REFINER)
    known = {discipline, padding, confabulation} if seen else {padding}
    true, wrong_id = _cited(texts, texts.true), _cited(texts, texts.true, texts.wrong_id)
    padded = {padding: 1.0, discipline: 1.0, confabulation: 0.0}
    answers: dict[str, tuple[str, Rights]] = {
        "well_cited": (true, {discipline: 1.0, padding: 0.0, confabulation: 0.0}),
        "wrong_id": (wrong_id, {discipline: 0.0, padding: 0.0, confabulation: 0.0}),
        "to_the_point": (true, {padding: 0.0}),
        "off_query": (f"{true} {_cited(texts, texts.job)}", padded),
        "said_twice": (f"{true} {true}", padded),
        "right_entity": (true, {confabulation: 0.0}),
        "entity_swapped": (_cited(texts, texts.swapped), {confabulation: 1.0, discipline: 0.0, padding: 0.0}),
    }
    uncited = {discipline: 0.0, padding: 0.0}  # what has no citation can be known without evidence
    yield from _about(texts, "no_citation", texts.true, uncited, seen=seen, whole=whole)
    for kind, (answer, rights) in answers.items():
        if next(iter(rights)) in known:
            rights = {criterion: right for criterion, right in rights.items() if criterion in known}
            yield from _about(texts, kind, answer, rights, seen=seen, whole=whole)


Rights = Mapping[str, float]
"""The right score of each criterion; the first is the one that its kind of answer tests."""


def _about(texts: ExamTexts, kind: str, answer: str, rights: Rights, *, seen: bool, whole: bool) -> Asked:
    """The first criterion of an answer, and the others if it is judged by all at once."""
    asked = [*rights] if whole else [*rights][:1]
    sheet = Sheet(question=texts.question, answer=answer, evidence=texts.output if seen else "", criteria=tuple(asked))
    for at, (criterion, case) in enumerate(zip(asked, sheet.cases, strict=True)):
        yield "same_answer" if at else kind, case, rights[criterion]


def _cited(texts: ExamTexts, text: str, id_: str = "") -> str:
    return f'<snippet id="{id_ or texts.id}">{text}</snippet>'


UNSEEN_CRITERIA = partial(criteria, seen=False)
CRITERIA_ON_SHEETS = partial(criteria, whole=True)
UNSEEN_CRITERIA_ON_SHEETS = partial(criteria, seen=False, whole=True)
UNSEEN_STATIC = partial(static_criteria, seen=False)
STATIC_ON_SHEETS = partial(static_criteria, whole=True)
UNSEEN_STATIC_ON_SHEETS = partial(static_criteria, seen=False, whole=True)
