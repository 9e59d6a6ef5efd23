"""The exam that a judge has to pass in what it is asked for, before the first step that trains on its verdicts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sleuth.answers.exam_paper import exam_paper
from sleuth.evaluation.exam_card import ExamCard, exam_card, in_words
from sleuth.host.atomic import write_text
from sleuth.host.threads import to_stderr
from sleuth.judges.exam import sit_exam
from sleuth.judges.factory import JudgePool, JudgeUse, OpenJudge, count_calls, judge_of, require_judge
from sleuth.recipe.judges import JudgeFields, Skill
from sleuth.runs.eval_file import CARDS_FILE, read_cards
from sleuth.runs.progress import ProgressBar
from sleuth.types import SleuthError

PEOPLE = 32
"""The people of the exam; each is asked about in all kinds of each skill, and some questions twice."""


def take_exam(
    opened: OpenJudge,
    skills: Sequence[Skill] | None = None,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ExamCard:
    """The card of a judge after a whole exam in these skills, or in all that it has; cached verdicts are not used."""
    paper = exam_paper(PEOPLE, opened.skills if skills is None else skills)
    started, before = time.perf_counter(), opened.ledger.calls if opened.ledger else 0
    answers = asyncio.run(sit_exam(paper, opened.judge, opened.pairs, opened.sheets, progress=progress))
    asked = len(answers) + sum(answer.repeated is not None for answer in answers)
    calls = opened.ledger.calls - before if opened.ledger else asked
    return exam_card(opened.identity, answers, calls=calls, seconds=time.perf_counter() - started)


def require_accurate(
    judges: Iterable[JudgeUse], judge_pool: JudgePool, say: Callable[[str], None] = to_stderr
) -> list[dict[str, Any]]:
    """The cards of the judges that have a `least_accuracy` in the recipe, also in `CARDS_FILE` beside the verdicts. A
    judge that passed in all that it is asked for is not examined again; cards of earlier versions say nothing of that.

    Raises SleuthError if the server of a judge does not answer, or if a judge is below its bar in what it is asked for.
    """
    judges = [*judges]
    for use in judges:
        if use.judge.is_served:  # it answered when the run began, which may be days ago
            require_judge(use)
    passed = read_cards(judge_pool.folder)
    cards: dict[str, dict[str, Any]] = {}
    examined = [use for use in judges if use.judge.required_accuracy is not None]
    for use in examined:
        opened = judge_pool.open(use.judge)
        needed = [
            skill for one in examined if judge_pool.identity(one.judge) == opened.identity for skill in one.skills
        ]
        card = cards.get(opened.identity) or passed.get(opened.identity) or {}
        if lacking := [skill for skill in dict.fromkeys(needed) if skill not in card.get("skills", ())]:
            card = _examine(opened, [*card.get("skills", ()), *lacking], say)
        _require(f"the judge of {use.of}", card, use.skills, use.judge.required_accuracy or 0.0, "trained")
        cards[opened.identity] = card
    if passed | cards != passed:
        judge_pool.folder.mkdir(parents=True, exist_ok=True)
        write_text(judge_pool.folder / CARDS_FILE, cards_json([*(passed | cards).values()]))
    return [*cards.values()]


def accurate_judge(recipe: JudgeFields, file: Path, skills: Sequence[Skill], out: Path | None = None) -> OpenJudge:
    """The judge of a file, after an exam in these skills where it has a `least_accuracy`. Its budget is that of all
    starts that write `out`. Raises SleuthError if it is below that, or cannot be asked."""
    opened = judge_of(recipe)
    if out is not None:
        count_calls(opened.ledger, opened.identity, out)
    if recipe.required_accuracy is not None:
        card = _examine(opened, skills, to_stderr)
        _require(f"the judge of {file}", card, skills, recipe.required_accuracy, "judged")
    return opened


def cards_json(cards: Sequence[Mapping[str, Any]]) -> str:
    """The contents of a file of cards."""
    return json.dumps(cards, indent=1) + "\n"


def _require(judge: str, card: Mapping[str, Any], skills: Sequence[Skill], bar: float, done: str) -> None:
    """Raises SleuthError for the first skill below the bar."""
    for skill in skills:
        if (card["skills"][skill]["accuracy"]["value"] or 0.0) < bar:
            raise SleuthError(
                f"{judge}, {card['judge']}, {_mark_line(skill, card['skills'][skill])}, and least_accuracy = {bar}: "
                f"nothing is {done} by it; try another judge with `sleuth check judge`"
            )


def _mark_line(skill: Skill, mark: Mapping[str, Any]) -> str:
    """`is right about 0.514 (0.350 to 0.676) of an exam's continuations (of the kind negation: 0.41; n = 32)`."""
    accuracy, worst = mark["accuracy"], mark["worst"]
    least = mark["kinds"][worst]["value"]
    lacking = f"of the kind {in_words(worst)}: {least:.2f}; " if least < 1 else ""
    return (
        f"is right about {accuracy['value']:.3f} ({accuracy['low']:.3f} to {accuracy['high']:.3f}) of an exam's "
        f"{in_words(skill)} ({lacking}n = {accuracy['n']})"
    )


def _examine(opened: OpenJudge, skills: Sequence[Skill], say: Callable[[str], None]) -> dict[str, Any]:
    """The card as plain values; its findings are told to `say`."""
    with ExitStack() as stack:
        bar: ProgressBar | None = None

        def progress(done: int, total: int) -> None:
            nonlocal bar
            bar = bar or stack.enter_context(ProgressBar("exam of the judge", total))
            bar.advance(done - bar.done)

        exam = take_exam(opened, skills, progress=progress)
    card = exam.as_json()
    for skill, mark in card["skills"].items():
        say(f"the judge {exam.judge} {_mark_line(skill, mark)}")
    for line in (*exam.faults, *(f"is too often wrong about {kind}" for kind in exam.weak)):
        say(f"the judge {exam.judge} {line}")
    return card
