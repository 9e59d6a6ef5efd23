"""A language model behind HTTP as a judge: vLLM, SGLang, or anything that speaks OpenAI's chat completions."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sleuth.judges.asking import Asker
from sleuth.judges.forms import (
    FORMS,
    HALVES,
    Form,
    NotAVerdictError,
    Question,
    answer_to_judge,
    json_object,
    material,
    prompt_text,
    question_of,
)
from sleuth.judges.pool import Ledger, NoAnswerError
from sleuth.types import Case, Pair, Sheet, Verdict

READER = 1
"""Raised whenever the same words of a judge could be read as another verdict."""


class HttpJudge:
    """A `Judge`, a `SheetJudge` and a `PairJudge` that asks one model and never another: at temperature 0, one question
    a call.

    An answer is asked for as JSON of a schema; a server that refuses schemas is asked without, and read as strictly.
    What is no verdict is asked again once, with what was wrong; a second one is `invalid`. What could not be asked or
    was not answered within 4 x `timeout` seconds is missing, as is all that goes beyond `ledger.budget` calls.
    `ledger` counts how everything ended. At most `at_once` calls are under way, fewer while many fail.

    `extra` goes into each request as it is, such as `{"chat_template_kwargs": {"enable_thinking": False}}`; a model
    that thinks needs a larger `max_tokens`, which are those of one verdict: a sheet has as many times that.
    """

    def __init__(
        self,
        urls: Sequence[str],
        model: str,
        *,
        timeout: float = 60.0,
        at_once: int = 256,
        max_tokens: int = 512,
        budget: int | None = None,
        extra: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> None:
        self.ledger = Ledger(budget=budget)
        self._asker = Asker(
            urls,
            model,
            timeout=timeout,
            at_once=at_once,
            max_tokens=max_tokens,
            extra=extra,
            key=key,
            ledger=self.ledger,
        )

    @property
    def identity(self) -> str:
        """Names all that a verdict depends on but the server that gave it: the model as it is asked for, the prompts,
        the settings of the request and how answers are read."""
        settings = self._asker.settings
        asked = [READER, [[form.prompt, form.schema] for form in (*FORMS, SHEET)], settings]
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return f"http {settings['model']} {digest[:16]}"

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """A verdict of 0, 0.5 or 1 for each case, or none and why."""
        return [verdict for [verdict] in await self._all(map(question_of, cases))]

    async def rate(self, sheets: Sequence[Sheet]) -> list[list[Verdict]]:
        """For each sheet a verdict of 0, 0.5 or 1 by each criterion; all of them, or none and why."""
        return await self._all(map(sheet_question, sheets))

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Which of each pair is better, in the order that it is given."""
        return [verdict for [verdict] in await self._all(map(question_of, pairs))]

    async def _all(self, questions: Iterable[Question | SheetQuestion]) -> list[list[Verdict]]:
        return await asyncio.gather(*map(self._verdicts, questions))

    async def _verdicts(self, question: Question | SheetQuestion) -> list[Verdict]:
        try:
            verdicts = await self._asker.ask(question)
        except NoAnswerError as error:
            verdicts = [Verdict(score=None, reason=str(error))] * question.entries
        except NotAVerdictError as error:
            told = f"twice no verdict: {error}"
            verdicts = [Verdict(score=None, reason=told, invalid=True)] * question.entries
        return list(map(self.ledger.enter, verdicts))


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
