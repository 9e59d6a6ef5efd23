"""A language model behind HTTP as a judge: vLLM, SGLang, or anything that speaks OpenAI's chat completions."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sleuth.judges.asking import Asker
from sleuth.judges.forms import FORMS, NotAVerdictError, Question, question_of
from sleuth.judges.ledger import Ledger
from sleuth.judges.pool import NoAnswerError
from sleuth.judges.sheets import SHEET, SheetQuestion, sheet_question
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
