"""A judge that knows the right answers of the exam, and forgets them where a test says so."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from chat_server import preferred, says, scored

from sleuth.judges.exam import ExamQuestion, _sheet, _sheets
from sleuth.judges.judge_prompts import question_of
from sleuth.types import AnySheet, Case, Pair, Verdict


@dataclass
class AnswerKey:
    """Right about each question of the paper, but a coin is tossed about those that `guesses`."""

    paper: Sequence[ExamQuestion]
    guesses: Callable[[ExamQuestion], bool] = lambda question: False
    identity: str = "key"
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        self.questions = {(question.item, question.on_sheet): question for question in self.paper}
        self.by_message: dict[str, Sequence[Case | Pair]] = {
            question_of(question.item).message: [question.item] for question in self.paper if not question.on_sheet
        }
        for sheet in _sheets(self.paper):
            cases = [*sheet.values()]
            self.by_message[question_of(_sheet(cases)).message] = cases

    def knows(self, body: dict[str, Any]) -> bool:
        """Whether a request is about a question of the exam."""
        return body["messages"][1]["content"] in self.by_message

    def reply(self, body: dict[str, Any]) -> tuple[int, object]:
        """As a language model behind HTTP."""
        items = self.by_message[body["messages"][1]["content"]]
        on_sheet = "verdicts" in body["messages"][0]["content"]
        scores = [self.verdict(item, on_sheet=on_sheet).score or 0.0 for item in items]
        [first, *_] = items
        if isinstance(first, Pair):
            return says(preferred({1.0: "first", 0.0: "second", 0.5: "tie"}[scores[0]]))
        if not on_sheet:
            return says(scored(int(2 * scores[0])))
        number = "criterion" if first.criterion else "claim"
        entries = [{number: at, "reason": "so it is", "score": int(2 * score)} for at, score in enumerate(scores, 1)]
        return says(json.dumps({"verdicts": entries}))

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        return [self.verdict(case) for case in cases]

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [self.verdict(pair) for pair in pairs]

    async def rate(self, sheets: Sequence[AnySheet]) -> list[list[Verdict]]:
        return [[self.verdict(case, on_sheet=True) for case in sheet.cases] for sheet in sheets]

    def verdict(self, item: Case | Pair, *, on_sheet: bool = False) -> Verdict:
        question = self.questions[item, on_sheet]
        right = 1 - question.right if question.exchanged else question.right
        return Verdict(score=float(self.rng.random() < 0.5) if self.guesses(question) else right)
