"""An answer judged by many criteria in one call: as strictly read as a verdict that comes alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sleuth.judges.forms import HALVES, Form, NotAVerdictError, answer_to_judge, json_object, material, prompt_text
from sleuth.types import Sheet, Verdict

VERDICTS, NUMBER = "verdicts", "criterion"
SHEET = Form(name="sheet", prompt=prompt_text("sheet"), key="score", scores=HALVES, quotes=False)
"""Of one entry, but for its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetQuestion:
    """A filled sheet: the user's message, and how many `entries` it is to be answered with."""

    message: str
    entries: int

    @property
    def name(self) -> str:
        """The form's."""
        return SHEET.name

    @property
    def prompt(self) -> str:
        """The system message."""
        return SHEET.prompt

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of an answer: an entry for each criterion, the number first, the score last."""
        numbers = [*range(1, self.entries + 1)]
        entry = SHEET.schema
        entry["properties"] = {NUMBER: {"enum": numbers}, **entry["properties"]}
        entry["required"] = [NUMBER, *entry["required"]]
        entries = {"type": "array", "items": entry, "minItems": self.entries, "maxItems": self.entries}
        return {
            "type": "object",
            "properties": {VERDICTS: entries},
            "required": [VERDICTS],
            "additionalProperties": False,
        }

    def read(self, text: str) -> list[Verdict]:
        """The verdicts that an answer states, in the order of the criteria. Raises NotAVerdictError where an entry is
        missing, twice there or none: of a sheet that is half read, nobody knows which half."""
        answer = json_object(text)
        found = answer.get(VERDICTS)
        if list(answer) != [VERDICTS] or not isinstance(found, list):
            raise NotAVerdictError(f"it should be one JSON object with the key {VERDICTS}, a list")
        if not all(isinstance(entry, dict) for entry in found):
            raise NotAVerdictError(f"each of the {VERDICTS} should be an object")
        numbers = [entry.pop(NUMBER, None) for entry in found]
        if numbers != [*range(1, self.entries + 1)] or not all(type(number) is int for number in numbers):
            raise NotAVerdictError(f"there should be an entry for each criterion from 1 to {self.entries}, in order")
        return [SHEET.verdict_of(entry, "") for entry in found]


def sheet_question(sheet: Sheet) -> SheetQuestion:
    """What a model is asked about a sheet; what siblings share comes first."""
    numbered = "\n".join(f"{number}. {' '.join(text.split())}" for number, text in enumerate(sheet.criteria, start=1))
    shared = answer_to_judge(sheet.question, sheet.evidence, sheet.answer)
    return SheetQuestion(message=shared + material("criteria", numbered), entries=len(sheet.criteria))
