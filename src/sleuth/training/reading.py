"""The trainer of `data.kind = "reading"`: rows that begin as single sentences and end as whole passages, a loss on
where the copying head attends, and exact match on articles that are never trained."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.data.spans import cloze, sentences
from sleuth.evaluation.reading_exam import ReadingExam, examine
from sleuth.factories import (
    ReadingQuestion,
    ReadingTexts,
    ReadingTokens,
    add_tokens,
    by_source,
    make_reading_tokenizer,
    pick_device,
    random_model,
    read_reading_texts,
)
from sleuth.factories.reading_tokens import ANSWER_TOKENS
from sleuth.learn.batch import Batch, Row, collate
from sleuth.learn.policy import CopyingUpdate, Update
from sleuth.learn.reading import begin_with_reading
from sleuth.recipe import SupervisedRecipe
from sleuth.runs.eval_file import write_eval
from sleuth.stage_context import Saved, StageContext
from sleuth.training.loop import Figures, train, update_figures
from sleuth.training.sft import HELD_OUT, SFTTrainer
from sleuth.types import Passage

FIRST_CLOZES, LAST_CLOZES, CLOZES_FALL_UNTIL = 0.7, 0.2, 0.6
"""The share of clozes in the first step, and from this part of the steps on."""
SENTENCES_UNTIL = ((0.2, 1), (0.37, 2), (0.55, 4))
"""(part of the steps, sentences of a passage until then); afterwards whole passages."""
LONGER, WHOLE = 0.15, 0.3
"""Share of the rows before that are longer, by up to two sentences; of these, share of whole passages."""
FIRST_TOKEN_WEIGHT = 3.0
"""Weight of the first token of an answer, which decides where it is copied from; that of the others is 1."""
NUMBERS = 3
"""A passage of a row has any of the numbers 1 to `NUMBERS`."""
SAMPLED_QUESTIONS = 200
"""Held-out questions that are asked at every save but the last, which asks all of them."""


def run(stage: SupervisedRecipe, context: StageContext) -> Path:
    """Train on the stage's rows; the last checkpoint."""
    saved = context.saved()
    if saved and saved.steps >= stage.last_step:
        return saved.checkpoint
    return train(stage, context, ReadingTrainer(stage, context, saved), saved)


class ReadingTrainer(SFTTrainer):
    """Row i is always trained in step i // rows_per_step."""

    def __init__(self, stage: SupervisedRecipe, context: StageContext, saved: Saved | None) -> None:
        data = stage.data
        assert data.kind == "reading"
        self.texts = read_reading_texts(data)
        starts = context.model_to_train(saved) if saved else _first_model(stage, context, self.texts)
        super().__init__(stage, context, saved, *starts)
        self.stage = stage
        self.tokens = ReadingTokens(self.tokenizer)
        self.rows = ReadingRows(
            self.texts, self.tokens, mix=data.mix, rows=stage.steps * stage.rows_per_step, key=context.key
        )
        self.exam: ReadingExam | None = None

    def opening(self) -> list[str]:
        """What is trained, and what is held out."""
        texts = self.texts
        return [
            f"{len(texts.questions):,} questions and {len(texts.passages):,} passages to train on, "
            f"{len(texts.held_out):,} questions about held-out articles"
        ]

    def step(self, step: int) -> Figures:
        """One optimiser step on the next rows; at a checkpoint also exact match on held-out articles."""
        started = time.monotonic()
        first = (step - 1) * self.stage.rows_per_step
        batch = collate([self.rows.row(index) for index in range(first, first + self.stage.rows_per_step)])
        figures = self.learn(batch, started)
        self.exam = None
        if self.stage.saves_at(step):
            self.exam = self.context.ranks.broadcast(lambda: self._examine(whole=step == self.stage.last_step))
            figures |= {f"{HELD_OUT}{name}": measured.value for name, measured in self.exam.figures().items()}
        return figures

    def learn(self, batch: Batch, started: float) -> Figures:
        """One optimiser step on a batch; its figures. `started` is the time at which the batch was begun."""
        weight = self.stage.copying_weight
        kind = CopyingUpdate if weight else Update
        update = update_figures(
            self.budget, lambda budget: self.policy.supervise(batch, budget=budget, copying=weight), kind
        )
        return update | {"seconds_update": time.monotonic() - started}

    def remarks(self, step: int, figures: Figures) -> list[str]:
        """Exact match beside the control."""
        return [] if self.exam is None else [f"step {step}, held-out articles: {self.exam}"]

    def _examine(self, *, whole: bool) -> ReadingExam:
        """All held-out questions, with a file, or the same few each time."""
        asked = list(self.texts.held_out)
        if not whole and len(asked) > SAMPLED_QUESTIONS:
            asked = random.Random(0).sample(asked, SAMPLED_QUESTIONS)
        exam = examine(self.model, self.tokens, asked, log=self.context.folder.say)
        if whole:
            name = f"{self.context.stage.name}_held_out"
            file = self.context.folder.eval / f"{name}.json"
            contents = {"name": name, **exam.as_json()}
            self.context.folder.backlog.write(f"the evaluation {name}", lambda: write_eval(file, contents))
        return exam


def _first_model(
    stage: SupervisedRecipe, context: StageContext, texts: ReadingTexts
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    if stage.init is None:
        model, tokenizer = context.model_to_train(None)
    else:
        assert stage.init.vocabulary is not None  # the recipe's checks
        seed = context.recipe.seed
        tokenizer = make_reading_tokenizer(texts, stage.init.vocabulary)
        model = random_model(stage.init, tokenizer, seed)
        if stage.init.reading:
            tokens = ReadingTokens(tokenizer)
            begin_with_reading(model, tokens.words, tokens.passages(texts.passages), seed)
        cast(torch.nn.Module, model).to(pick_device(context.recipe.device))
    add_tokens(model, tokenizer, stage.tokens)
    return model, tokenizer


class ReadingRows:
    """An endless sequence of rows, each a function of its index; `rows` of them are the whole stage."""

    def __init__(
        self,
        texts: ReadingTexts,
        tokens: ReadingTokens,
        *,
        mix: dict[str, float] | None,
        rows: int,
        key: tuple[int, ...],
    ) -> None:
        self.tokens, self.rows, self.key = tokens, rows, key
        self.passages = texts.passages
        sources = by_source(texts.questions)
        self.sources = [sources[name] for name in mix] if mix else [list(texts.questions)]
        self.weights = [*mix.values()] if mix else [1.0]

    def row(self, index: int) -> Row:
        """Question, passage, question and answer. What does not fit is drawn again."""
        rng = random.Random(f"{self.key} {index}")
        progress = index / self.rows
        clozes = FIRST_CLOZES + (LAST_CLOZES - FIRST_CLOZES) * min(1.0, progress / CLOZES_FALL_UNTIL)
        while True:
            drawn = self._cloze(rng) if rng.random() < clozes else self._question(rng)
            row = drawn and self._row(*drawn, most=sentences_at(progress, rng), rng=rng)
            if row is not None:
                return row

    def _question(self, rng: random.Random) -> tuple[str, Passage, int, int]:
        [questions] = rng.choices(self.sources, self.weights)
        question: ReadingQuestion = rng.choice(questions)
        return question.question, question.passage, question.start, question.end

    def _cloze(self, rng: random.Random) -> tuple[str, Passage, int, int] | None:
        passage = rng.choice(self.passages)
        made = cloze(passage.text, rng)
        return made and (made.question, passage, made.start, made.end)

    def _row(
        self, question: str, passage: Passage, start: int, end: int, *, most: int | None, rng: random.Random
    ) -> Row | None:
        """None if the answer is too long, or beyond the end of a passage that was cut."""
        begin, stop = some_sentences(passage.text, start, end, most, rng)
        number = rng.randint(1, NUMBERS)
        encoded = self.tokens.passage(number, passage.title, passage.text[begin:stop])
        span = encoded.span(start - begin, end - begin)
        if span is None or span[1] - span[0] > ANSWER_TOKENS:
            return None
        return reading_row(self.tokens, self.tokens.question(question), encoded.tokens, number, span)


def reading_row(
    tokens: ReadingTokens, question: tuple[int, ...], passage: tuple[int, ...], number: int, span: tuple[int, int]
) -> Row:
    """The row whose answer is the tokens [first, after) of the passage, followed by the passage's number. The answer is
    copied token by token, and so is the digit of the number."""
    prompt = tokens.prompt(question, passage)
    cited = tokens.number(number)
    answer = (*passage[slice(*span)], *cited, tokens.end)
    at = len(question) + 1  # of the passage's first token
    digit = (*(-1,) * (len(cited) - 2), at + len(cited) - 2)  # before it ` [`, after it `]`
    return Row(
        tokens=(*prompt, *answer),
        trained=(*(False,) * len(prompt), *(True,) * len(answer)),
        token_weight=(*(0.0,) * len(prompt), FIRST_TOKEN_WEIGHT, *(1.0,) * (len(answer) - 1)),
        sources=(*(-1,) * len(prompt), *range(at + span[0], at + span[1]), *digit, -1, -1),
    )


def sentences_at(progress: float, rng: random.Random) -> int | None:
    """How many sentences of its passage a row has; None: all."""
    most = next((most for until, most in SENTENCES_UNTIL if progress < until), None)
    if most is None or rng.random() >= LONGER:
        return most
    return None if rng.random() < WHOLE else most + rng.randrange(3)


def some_sentences(text: str, start: int, end: int, most: int | None, rng: random.Random) -> tuple[int, int]:
    """The characters [begin, stop) of at most `most` sentences in a row, more if the characters [start, end) are in
    more of them. Which of those around are taken is random."""
    bounds = sentences(text)
    if most is None or len(bounds) <= most:
        return 0, len(text)
    first = max(at for at, (begin, _) in enumerate(bounds) if begin <= start)
    last = max(at for at, (begin, _) in enumerate(bounds) if begin < end)
    low = max(0, min(first - rng.randrange(most) + last - first, first, len(bounds) - most))
    high = max(low + most - 1, last)
    return bounds[low][0], bounds[high][1]
