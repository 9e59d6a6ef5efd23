"""A language model judge behind OpenAI's chat completions (vLLM, SGLang, ...)."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sleuth.judges.json_client import JsonClient
from sleuth.judges.judge_prompts import FORMS, InvalidAnswerError, Question, question_of
from sleuth.judges.pool import Ledger, NoAnswerError
from sleuth.judges.rubric_sheets import CLAIMS, CRITERIA, SheetQuestion, sheet_question
from sleuth.types import AnySheet, Case, Pair, Verdict

PARSER_VERSION = 1
"""Raised whenever the same answer could be parsed to another verdict."""


class HttpJudge:
    """A `Judge`, a `SheetJudge` and a `PairJudge` that asks one model, at temperature 0, one question per call.

    Answers are JSON of a schema (see `JsonClient`). An invalid answer is retried once with what was wrong; a second one
    makes the verdict `invalid`. A question without an answer within 4 x `timeout` seconds, or beyond `ledger.budget`
    calls, has a missing verdict. `ledger` counts all outcomes. At most `at_once` calls run concurrently, fewer while
    many fail.

    `extra` is added to each request, such as `{"chat_template_kwargs": {"enable_thinking": False}}`. `max_tokens` is
    for one verdict, a sheet gets a multiple; a model that thinks needs more.
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
        self._client = JsonClient(
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
        """Everything that a verdict depends on except the server: the model's name in the request, the prompts, the
        settings of the request and the parser's version."""
        settings = self._client.settings
        parts = [PARSER_VERSION, [[form.prompt, form.schema] for form in (*FORMS, CRITERIA, CLAIMS)], settings]
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
        return f"http {settings['model']} {digest[:16]}"

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """A verdict of 0, 0.5 or 1 for each case, or a missing one with its reason."""
        return [verdict for [verdict] in await self._all(map(question_of, cases))]

    async def rate(self, sheets: Sequence[AnySheet]) -> list[list[Verdict]]:
        """For each sheet a verdict of 0, 0.5 or 1 per case; either all of them, or all missing with the reason."""
        return await self._all(map(sheet_question, sheets))

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Which answer of each pair is better, in the order given."""
        return [verdict for [verdict] in await self._all(map(question_of, pairs))]

    async def _all(self, questions: Iterable[Question | SheetQuestion]) -> list[list[Verdict]]:
        return await asyncio.gather(*map(self._verdicts, questions))

    async def _verdicts(self, question: Question | SheetQuestion) -> list[Verdict]:
        try:
            verdicts = await self._client.ask(question)
        except NoAnswerError as error:
            verdicts = [Verdict(score=None, reason=str(error))] * question.entries
        except InvalidAnswerError as error:
            reason = f"twice no verdict: {error}"
            verdicts = [Verdict(score=None, reason=reason, invalid=True)] * question.entries
        return list(map(self.ledger.enter, verdicts))
