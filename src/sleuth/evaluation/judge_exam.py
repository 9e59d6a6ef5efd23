"""Whether a judge may pay: it sits an exam, once, before the first step that is trained by what it says."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sleuth.factories import JudgePool, OpenJudge
from sleuth.judges.exam import exam_paper, sit_exam
from sleuth.metrics.exam_card import ExamCard, exam_card
from sleuth.recipe.judges import JudgeRecipe
from sleuth.runs.atomic import write_text
from sleuth.runs.progress import ProgressBar
from sleuth.runs.run_folder import RunFolder
from sleuth.types import SleuthError

PEOPLE = 32
"""Asked about; nine claims about each, sixteen pairs where a judge compares, and some of them twice."""
CARDS = "judges.json"
"""In a run's folder, and in each checkpoint that was trained by what these judges said."""


def take_exam(
    opened: OpenJudge, *, pairs: bool, progress: Callable[[int, int], None] = lambda done, total: None
) -> ExamCard:
    """The card of a judge that is asked all, and some of it twice; it never reads what was kept."""
    compared = opened.pairs if pairs else None
    paper = exam_paper(PEOPLE, pairs=compared is not None)
    started, before = time.perf_counter(), opened.ledger.calls if opened.ledger else 0
    answers = asyncio.run(sit_exam(paper, opened.judge, compared, progress=progress))
    asked = len(answers) + sum(answer.repeated is not None for answer in answers)
    calls = opened.ledger.calls - before if opened.ledger else asked
    return exam_card(opened.identity, answers, calls=calls, seconds=time.perf_counter() - started)


def require_accurate(
    judges: Iterable[tuple[str, JudgeRecipe]], judge_pool: JudgePool, folder: RunFolder
) -> list[dict[str, Any]]:
    """The cards of all judges, given with the kinds of their rewards, for which the recipe sets a bar. One who passed
    in this run already is not asked again. Raises SleuthError where a judge is below its bar."""
    passed = _read(folder.path / CARDS)
    cards: dict[str, dict[str, Any]] = {}
    for kind, recipe in judges:
        if recipe.least_accuracy is not None:
            opened = judge_pool.open(recipe)
            card = passed.get(opened.identity) or _examined(opened, folder)
            if card["accuracy"] < recipe.least_accuracy:
                raise SleuthError(_below(kind, card, recipe.least_accuracy))
            cards[opened.identity] = card
    if cards.keys() - passed.keys():
        write_text(folder.path / CARDS, in_file([*(passed | cards).values()]))
    return [*cards.values()]


def in_file(cards: Sequence[Mapping[str, Any]]) -> str:
    """The contents of a file of cards."""
    return json.dumps(cards, indent=1) + "\n"


def _below(kind: str, card: Mapping[str, Any], bar: float) -> str:
    right = {name.replace("_", " "): share["value"] for name, share in card["cases"].items()}
    worst = min(right, key=right.__getitem__)
    return (
        f"the judge of the {kind} reward, {card['judge']}, is right about {card['accuracy']:.3f} of an exam's claims "
        f"(of the kind {worst}: {right[worst]:.2f}), and least_accuracy = {bar}: nothing is trained by it; try another "
        "judge with `sleuth check judge`"
    )


def _examined(opened: OpenJudge, folder: RunFolder) -> dict[str, Any]:
    """The card, as it is kept; what it says of the judge is told."""
    with ExitStack() as shown:
        bar: ProgressBar | None = None

        def progress(done: int, total: int) -> None:
            nonlocal bar
            bar = bar or shown.enter_context(ProgressBar("exam of the judge", total))
            bar.advance(done - bar.done)

        card = take_exam(opened, pairs=False, progress=progress)
    folder.say(f"the judge {card.judge} is right about {card.accuracy:.3f} of an exam's claims")
    for line in (*card.faults, *(f"is too often wrong about {kind}" for kind in card.weak)):
        folder.say(f"the judge {card.judge} {line}")
    return card.as_json()


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """Cards by the judge's identity."""
    if not file.exists():
        return {}
    return {card["judge"]: card for card in json.loads(file.read_text(encoding="utf-8"))}
