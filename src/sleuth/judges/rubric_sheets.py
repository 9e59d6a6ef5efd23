"""Sheets: many criteria of an answer, or many of its claims, in one call of a judge; single calls as a fallback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sleuth.judges.judge_prompts import (
    GRADES,
    Form,
    InvalidAnswerError,
    answer_blocks,
    json_object,
    prompt_text,
    tagged_block,
)
from sleuth.types import AnySheet, Case, ClaimSheet, Judge, Sheet, SheetJudge, Verdict

VERDICTS = "verdicts"
CRITERIA = Form(name="sheet", prompt=prompt_text("sheet"), key="score", scores=GRADES, quotes=False)
CLAIMS = Form(name="claims", prompt=prompt_text("claims"), key="score", scores=GRADES, quotes=False)
"""The form of one entry, without its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetQuestion:
    """A filled sheet: the user message, and the number of `entries` that the answer must have. Each entry names its
    number under the key `number`: `criterion` or `claim`."""

    form: Form
    number: str
    message: str
    entries: int

    @property
    def name(self) -> str:
        """The form's name."""
        return self.form.name

    @property
    def prompt(self) -> str:
        """The system message."""
        return self.form.prompt

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of an answer: one object per entry, the number first, the score last."""
        entry = self.form.schema
        entry["properties"] = {self.number: {"enum": [*range(1, self.entries + 1)]}, **entry["properties"]}
        entry["required"] = [self.number, *entry["required"]]
        entries = {"type": "array", "items": entry, "minItems": self.entries, "maxItems": self.entries}
        return {
            "type": "object",
            "properties": {VERDICTS: entries},
            "required": [VERDICTS],
            "additionalProperties": False,
        }

    def read(self, text: str) -> list[Verdict]:
        """The verdicts of an answer, in the order of the entries. Raises InvalidAnswerError if one is missing, repeated
        or malformed: a partial sheet could assign verdicts to the wrong entries."""
        answer = json_object(text)
        entries = answer.get(VERDICTS)
        if list(answer) != [VERDICTS] or not isinstance(entries, list):
            raise InvalidAnswerError(f"it should be one JSON object with the key {VERDICTS}, a list")
        if not all(isinstance(entry, dict) for entry in entries):
            raise InvalidAnswerError(f"each of the {VERDICTS} should be an object")
        numbers = [entry.pop(self.number, None) for entry in entries]
        if numbers != [*range(1, self.entries + 1)] or not all(type(number) is int for number in numbers):
            raise InvalidAnswerError(
                f"there should be an entry for each {self.number} from 1 to {self.entries}, in order"
            )
        return [self.form.verdict_of(entry, "") for entry in entries]


def sheet_question(sheet: AnySheet) -> SheetQuestion:
    """The question to a model about a sheet; what siblings share comes first."""
    return _about_criteria(sheet) if isinstance(sheet, Sheet) else _about_claims(sheet)


def _about_criteria(sheet: Sheet) -> SheetQuestion:
    shared = answer_blocks(sheet.question, sheet.evidence, sheet.answer)
    message = shared + tagged_block("criteria", _numbered(sheet.criteria))
    return SheetQuestion(form=CRITERIA, number="criterion", message=message, entries=len(sheet.criteria))


def _about_claims(sheet: ClaimSheet) -> SheetQuestion:
    shared = "".join(tagged_block(f"snippet-{number}", text) for number, text in enumerate(sheet.snippets, start=1))
    claims = [f"(by {_snippets(indices)}) {claim}" for claim, indices in sheet.entries]
    message = shared + tagged_block("claims", _numbered(claims))
    return SheetQuestion(form=CLAIMS, number="claim", message=message, entries=len(sheet.entries))


def _numbered(lines: Sequence[str]) -> str:
    """Each text on a line of its own behind its number; a line break inside a text becomes a space."""
    return "\n".join(f"{number}. {' '.join(line.split())}" for number, line in enumerate(lines, start=1))


def _snippets(indices: Sequence[int]) -> str:
    """`snippet 1`, or `snippets 1, 2 and 3`."""
    *first, last = (str(index + 1) for index in indices)
    return f"snippets {', '.join(first)} and {last}" if first else f"snippet {last}"


async def verdicts_on(
    sheets: Sequence[AnySheet], judge: Judge | None = None, sheet_judge: SheetJudge | None = None
) -> list[list[Verdict]]:
    """The verdicts on each sheet's cases: by one call of the `sheet_judge` per sheet, or by single calls of the
    `judge`, equal cases once. With both, the cases of sheets that lack a verdict are asked singly."""
    if sheet_judge is None:
        return await _judged_singly(sheets, judge)
    verdicts = await sheet_judge.rate(sheets)
    lacking = [index for index, on_sheet in enumerate(verdicts) if any(found.score is None for found in on_sheet)]
    if judge is not None and lacking:
        for index, singly in zip(lacking, await _judged_singly([sheets[i] for i in lacking], judge), strict=True):
            verdicts[index] = singly
    return verdicts


async def _judged_singly(sheets: Sequence[AnySheet], judge: Judge | None) -> list[list[Verdict]]:
    assert judge is not None
    cases: list[Case] = list(dict.fromkeys(case for sheet in sheets for case in sheet.cases))
    verdicts = dict(zip(cases, await judge.judge(cases) if cases else (), strict=True))
    return [[verdicts[case] for case in sheet.cases] for sheet in sheets]
