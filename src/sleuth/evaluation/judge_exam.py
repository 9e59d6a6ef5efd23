"""The exam that a judge has to pass, once per run, before the first step that trains on its verdicts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sleuth.factories import JudgePool, JudgeUse, OpenJudge, judge_of, require_judge
from sleuth.judges.exam import exam_paper, sit_exam
from sleuth.metrics.exam_card import ExamCard, exam_card
from sleuth.recipe.judges import JudgeRecipe
from sleuth.runs.atomic import write_text
from sleuth.runs.progress import ProgressBar
from sleuth.runs.run_folder import RunFolder
from sleuth.threads import to_stderr
from sleuth.types import SleuthError

PEOPLE = 32
"""The people of the exam: nine claims about each, sixteen pairs if a judge compares, some of them twice, and the nine
once more in one call if a judge takes sheets."""
CARDS_FILE = "judges.json"
"""In a run's folder, and in each checkpoint that was trained on these judges' verdicts."""


def take_exam(
    opened: OpenJudge, *, pairs: bool, sheets: bool, progress: Callable[[int, int], None] = lambda done, total: None
) -> ExamCard:
    """The card of a judge after a whole exam, some questions asked twice; cached verdicts are not used. With `pairs` it
    also compares, with `sheets` it also judges several claims in one call, if it can."""
    compared, rating = opened.pairs if pairs else None, opened.sheets if sheets else None
    paper = exam_paper(PEOPLE, pairs=compared is not None)
    started, before = time.perf_counter(), opened.ledger.calls if opened.ledger else 0
    answers = asyncio.run(sit_exam(paper, opened.judge, compared, rating, progress=progress))
    asked = len(answers) + sum(answer.repeated is not None for answer in answers)
    calls = opened.ledger.calls - before if opened.ledger else asked
    return exam_card(opened.identity, answers, calls=calls, seconds=time.perf_counter() - started)


def require_accurate(judges: Iterable[JudgeUse], judge_pool: JudgePool, folder: RunFolder) -> list[dict[str, Any]]:
    """The cards of the judges that have a `least_accuracy` in the recipe. A judge that passed in this run before is not
    examined again. Raises SleuthError if the server of a judge does not answer, or if a judge is below its bar, on
    sheets if that is how it is asked."""
    judges = [*judges]
    for use in judges:
        if use.judge.is_served:  # it answered when the run began, which may be days ago
            require_judge(use)
    passed = _read_cards(folder.path / CARDS_FILE)
    cards: dict[str, dict[str, Any]] = {}
    examined = [use for use in judges if use.judge.least_accuracy is not None]
    on_sheets = {judge_pool.identity(use.judge) for use in examined if use.on_sheets}
    for use in examined:
        opened, bar = judge_pool.open(use.judge), use.judge.least_accuracy or 0.0
        sheets = opened.identity in on_sheets
        card = cards.get(opened.identity) or passed.get(opened.identity)
        if card is None or (sheets and card.get("sheet_accuracy") is None):
            card = _examine(opened, folder.say, sheets=sheets)
        for questions in ("cases", "sheets") if use.on_sheets else ("cases",):
            if card[ACCURACIES[questions]] < bar:
                raise SleuthError(_failure(f"the {use.kind} reward", card, bar, questions=questions))
        cards[opened.identity] = card
    if passed | cards != passed:
        write_text(folder.path / CARDS_FILE, cards_json([*(passed | cards).values()]))
    return [*cards.values()]


def accurate_judge(recipe: JudgeRecipe, file: Path) -> OpenJudge:
    """The judge of a file, after an exam where it has a `least_accuracy`. Raises SleuthError if the judge is below it,
    or cannot be asked."""
    opened = judge_of(recipe)
    if recipe.least_accuracy is not None:
        card = _examine(opened, to_stderr)
        if card["accuracy"] < recipe.least_accuracy:
            raise SleuthError(_failure(str(file), card, recipe.least_accuracy, "judged"))
    return opened


def cards_json(cards: Sequence[Mapping[str, Any]]) -> str:
    """The contents of a file of cards."""
    return json.dumps(cards, indent=1) + "\n"


ACCURACIES = {"cases": "accuracy", "sheets": "sheet_accuracy"}
"""The accuracy on a card for each way to ask about claims."""


def _failure(of: str, card: Mapping[str, Any], bar: float, done: str = "trained", *, questions: str = "cases") -> str:
    right = {name.replace("_", " "): share["value"] for name, share in card[questions].items()}
    worst = min(right, key=right.__getitem__)
    together = ", asked together" if questions == "sheets" else ""
    return (
        f"the judge of {of}, {card['judge']}, is right about {card[ACCURACIES[questions]]:.3f} of an exam's claims"
        f"{together} (of the kind {worst}: {right[worst]:.2f}), and least_accuracy = {bar}: nothing is {done} by it; "
        "try another judge with `sleuth check judge`"
    )


def _examine(opened: OpenJudge, say: Callable[[str], None], *, sheets: bool = False) -> dict[str, Any]:
    """The card as plain values; its findings are told to `say`."""
    with ExitStack() as stack:
        bar: ProgressBar | None = None

        def progress(done: int, total: int) -> None:
            nonlocal bar
            bar = bar or stack.enter_context(ProgressBar("exam of the judge", total))
            bar.advance(done - bar.done)

        card = take_exam(opened, pairs=False, sheets=sheets, progress=progress)
    together = "" if card.sheet_accuracy is None else f", and about {card.sheet_accuracy:.3f} asked together"
    say(f"the judge {card.judge} is right about {card.accuracy:.3f} of an exam's claims{together}")
    for line in (*card.faults, *(f"is too often wrong about {kind}" for kind in card.weak)):
        say(f"the judge {card.judge} {line}")
    return card.as_json()


def _read_cards(file: Path) -> dict[str, dict[str, Any]]:
    """The cards of the file by the judge's identity."""
    if not file.exists():
        return {}
    return {card["judge"]: card for card in json.loads(file.read_text(encoding="utf-8"))}
