"""An exam for judges: questions with known right verdicts, and a judge's answers to them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from sleuth.recipe.judges import ON_SHEETS, Skill
from sleuth.types import AnySheet, Case, ClaimSheet, Judge, Pair, PairJudge, Sheet, SheetJudge, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamQuestion:
    """A case or pair (`item`) about one person (`subject`) that tests a `skill`, with the `right` score of the tested
    answer, which was made in the way `kind`. That answer is the first of a pair unless `exchanged`; every pair is asked
    in both orders. `again`: it is asked twice.

    `ExamQuestion(skill="claims", kind="number_changed", subject=3, item=Case(...), right=0.0)`.
    """

    skill: Skill
    kind: str
    subject: int
    item: Case | Pair
    right: float
    exchanged: bool = False
    again: bool = False

    @property
    def on_sheet(self) -> bool:
        """Whether it is asked together with others."""
        return self.skill.endswith(ON_SHEETS)

    def tested_score(self, verdict: Verdict) -> float | None:
        """The score of the tested answer under a verdict."""
        if verdict.score is None or not self.exchanged:
            return verdict.score
        return 1 - verdict.score


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamAnswer:
    """The judge's verdict on a question, and the second one if the question was repeated."""

    question: ExamQuestion
    verdict: Verdict
    repeated: Verdict | None = None


async def sit_exam(
    paper: Sequence[ExamQuestion],
    judge: Judge,
    pair_judge: PairJudge | None = None,
    sheet_judge: SheetJudge | None = None,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[ExamAnswer]:
    """The judge's answers to all questions: those of sheets with all others about the same person or, of criteria, the
    same answer in one call, the others in single calls, some a second time. All calls are concurrent.

    Pass uncached judges, or the repetition shows nothing. A paper with pairs needs the `pair_judge`, one with questions
    on sheets the `sheet_judge`."""
    single = [question for question in paper if not question.on_sheet]
    repeats, sheets = [question for question in single if question.again], _sheets(paper)
    done, total = 0, len(single) + len(repeats) + len(sheets)

    def count() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    async def ask(question: ExamQuestion) -> Verdict:
        if isinstance(question.item, Case):
            [verdict] = await judge.judge([question.item])
        else:
            assert pair_judge is not None
            [verdict] = await pair_judge.compare([question.item])
        count()
        return verdict

    async def ask_on_sheet(cases: Mapping[ExamQuestion, Case]) -> list[ExamAnswer]:
        assert sheet_judge is not None
        [verdicts] = await sheet_judge.rate([_sheet([*cases.values()])])
        count()
        return [
            ExamAnswer(question=question, verdict=verdict) for question, verdict in zip(cases, verdicts, strict=True)
        ]

    verdicts = await asyncio.gather(*map(ask, single))
    second = iter(await asyncio.gather(*map(ask, repeats)))
    singly = [
        ExamAnswer(question=question, verdict=verdict, repeated=next(second) if question.again else None)
        for question, verdict in zip(single, verdicts, strict=True)
    ]
    return [*singly, *chain.from_iterable(await asyncio.gather(*map(ask_on_sheet, sheets)))]


def _sheets(paper: Sequence[ExamQuestion]) -> list[dict[ExamQuestion, Case]]:
    """The questions of each sheet: all claims about a person, or all criteria of an answer."""
    sheets: defaultdict[tuple[Skill, int, str], dict[ExamQuestion, Case]] = defaultdict(dict)
    for question in paper:
        if question.on_sheet and isinstance(question.item, Case):
            answer = question.item.claim if question.item.criterion else ""
            sheets[question.skill, question.subject, answer][question] = question.item
    return [*sheets.values()]


def _sheet(cases: Sequence[Case]) -> AnySheet:
    """The cases on one sheet; the evidence of claims consists of snippets with an empty line between two."""
    [first, *_] = cases
    if first.criterion:
        criteria = tuple(case.criterion for case in cases)
        return Sheet(question=first.question, answer=first.claim, evidence=first.evidence, criteria=criteria)
    index: dict[str, int] = {}
    for case in cases:
        for snippet in case.evidence.split("\n\n"):
            index.setdefault(snippet, len(index))
    entries = tuple((case.claim, tuple(index[snippet] for snippet in case.evidence.split("\n\n"))) for case in cases)
    return ClaimSheet(snippets=tuple(index), entries=entries)
