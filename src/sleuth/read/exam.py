"""Exact match of a reader that is given the sentence with the answer, alone or among others, beside a control."""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from transformers import PreTrainedModel

from sleuth.answers.match import exact_match, token_f1
from sleuth.data.spans import STOP_WORDS, answer_spans, sentences
from sleuth.engines.local.plain_engine import open_engine
from sleuth.evaluation.intervals import Measured, paired_bootstrap, share
from sleuth.ranks import ALONE, Ranks
from sleuth.read.texts import ReadingQuestion
from sleuth.read.tokens import ANSWER_TOKENS, ANSWERED, QUOTE_TOKENS, ReadingTokens
from sleuth.types import Sampling

LONGEST_ANSWER = ANSWER_TOKENS + QUOTE_TOKENS[1] + 3
"""Tokens of the longest answer, with its quotation and its end."""
WORD = re.compile(r"\w+")
SLOTS = 16
"""Questions that the engine answers at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingExam:
    """Questions with the model's answers and those of the sliding window."""

    questions: Sequence[ReadingQuestion]
    answers: Sequence[str]
    window_answers: Sequence[str]

    def figures(self) -> dict[str, Measured]:
        """Exact match and token F1 of the model, exact match of the control, and the difference, each with an interval
        over questions."""
        golden = [question.answers for question in self.questions]
        exact, window = ([*map(float, map(exact_match, one, golden))] for one in (self.answers, self.window_answers))
        return {
            "exact_match": share(exact),
            "f1": share([*map(token_f1, self.answers, golden)]),
            "window_exact_match": share(window),
            "above_window": paired_bootstrap(exact, window),
        }

    def __str__(self) -> str:
        exact, f1, window, above = self.figures().values()
        return (
            f"exact match {exact.formatted()} of {len(self.questions):,} questions, F1 {f1.formatted()}; "
            f"a sliding window {window.formatted()}, difference {above.formatted('+.3f')}"
        )

    def as_json(self) -> dict[str, Any]:
        """The figures, and what was answered to each question."""
        asked = [
            {
                "question": question.question,
                "golden_answers": question.answers,
                "passage": question.passage.id,
                "title": question.passage.title,
                "answer": answer,
                "window_answer": window,
            }
            for question, answer, window in zip(self.questions, self.answers, self.window_answers, strict=True)
        ]
        return {name: figure.as_json() for name, figure in self.figures().items()} | {"questions": asked}


def examine(
    model: PreTrainedModel,
    tokens: ReadingTokens,
    questions: Sequence[ReadingQuestion],
    prompts: Sequence[tuple[int, ...]],
    *,
    log: Callable[[str], None],
    ranks: Ranks = ALONE,
) -> ReadingExam:
    """The model's greedy answers to the questions, each with its prompt, by the engine of this process; on several
    ranks each answers a share."""
    context = max(map(len, prompts)) + LONGEST_ANSWER
    engine = open_engine(model, tokens.tokenizer, slots=SLOTS, context=context, log=log)

    async def answer(number: int, prompt: tuple[int, ...]) -> str:
        sampling = Sampling(max_tokens=LONGEST_ANSWER, temperature=0.0, stops=(ANSWERED,), key=(number,))
        return tokens.answer((await engine.complete(prompt, sampling)).tokens)

    async def answer_all(mine: Sequence[tuple[int, ...]], first: int) -> list[str]:
        return await asyncio.gather(*(answer(number, prompt) for number, prompt in enumerate(mine, first)))

    def by_window(mine: Sequence[ReadingQuestion], _: int) -> list[str]:
        return [window_answer(question.question, question.passage.text) for question in mine]

    return ReadingExam(
        questions=questions,
        answers=ranks.dealt(prompts, lambda mine, first: asyncio.run(answer_all(mine, first))),
        window_answers=ranks.dealt(questions, by_window),
    )


def window_answer(question: str, text: str) -> str:
    """The answer of the control: the sliding window with distances of MCTest (Richardson et al. 2013), as SQuAD applied
    it to spans (arXiv:1606.05250). It learns nothing. Departure: candidates are the dates, numbers, names and short
    noun phrases of `answer_spans`, where SQuAD took all constituents of a parse; so it is stronger than the 0.13 of the
    paper.

    The best candidate of the sentences that share most words and pairs of words with the question; empty if they
    have none.

    A candidate's score is the greatest weight of words of question and candidate in a window of as many words, rare
    words more, less the mean distance to the question's words as a share of the text.
    """
    words = [(match.group().lower(), match.start()) for match in WORD.finditer(text)]
    counts = Counter(word for word, _ in words)
    weight = [math.log(1 + 1 / counts[word]) for word, _ in words]
    asked = [word.lower() for word in WORD.findall(question)]
    content = set(asked) - STOP_WORDS
    pairs = set(pairwise(asked))

    def overlap(begin: int, stop: int) -> int:
        inside = [word for word, start in words if begin <= start < stop]
        return len(content & {*inside}) + len(pairs & set(pairwise(inside)))

    found = {word: [at for at, (other, _) in enumerate(words) if other == word] for word in content if counts[word]}

    def score(start: int, end: int) -> float:
        span = [at for at, (_, place) in enumerate(words) if start <= place < end]
        wanted = content | {words[at][0] for at in span}
        size = len(wanted)
        weights = [weight[at] if word in wanted else 0.0 for at, (word, _) in enumerate(words)]
        window = max(sum(weights[first : first + size]) for first in range(max(0, span[0] - size), span[-1] + 1))
        distances = [min(abs(at - here) for at in places for here in span) for places in found.values()]
        return window - sum(distances) / (max(1, len(found)) * len(words))

    bounds = sentences(text)
    most = max(overlap(*bound) for bound in bounds)
    candidates = [
        (span.start, span.end)
        for bound in bounds
        if overlap(*bound) == most
        for span in answer_spans(text, *bound)
        if (inside := WORD.findall(text[span.start : span.end].lower())) and not content.issuperset(inside)
    ]
    if not candidates:
        return ""
    start, end = max(candidates, key=lambda candidate: score(*candidate))
    return text[start:end]
