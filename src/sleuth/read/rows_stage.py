"""The trainer of `data.kind = "reading"`: rows that begin as single sentences and end as whole passages, a loss on
where the copying head attends, and exact match on articles that are never trained."""

from __future__ import annotations

import random
import time
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.learn.batch import Batch, collate
from sleuth.read.copying import CopyingLoss, CopyingUpdate
from sleuth.read.exam import ReadingExam, examine
from sleuth.read.initial_weights import begin_with_reading
from sleuth.read.rows import ReadingRows, SearchedRows
from sleuth.read.tables import ReadingRecipe
from sleuth.read.texts import read_reading_texts
from sleuth.read.tokens import ReadingTokens, make_reading_tokenizer
from sleuth.recipe import InitRecipe, SupervisedRecipe
from sleuth.retrieval.open_index import open_index
from sleuth.runs.eval_file import write_eval
from sleuth.training.learning import model_to_train
from sleuth.training.loop import Figures, update_figures
from sleuth.training.sft import HELD_OUT, SFTTrainer, first_model, run_with
from sleuth.training.stage_context import Saved, StageContext

SAMPLED_QUESTIONS = 200
"""Held-out questions that are asked at every save but the last, which asks all of them."""


def run(stage: SupervisedRecipe, context: StageContext) -> Path:
    """Train on the stage's rows; the last checkpoint."""
    return run_with(ReadingTrainer, stage, context)


class ReadingTrainer(SFTTrainer):
    """Row i is always trained in step i // rows_per_step."""

    def __init__(self, stage: SupervisedRecipe, context: StageContext, saved: Saved | None) -> None:
        data = stage.data
        assert isinstance(data, ReadingRecipe)
        self.texts = texts = read_reading_texts(data)

        def make_tokenizer(init: InitRecipe) -> PreTrainedTokenizerFast:
            assert init.vocabulary is not None  # the recipe's checks
            return make_reading_tokenizer(texts, init.vocabulary)

        def draw(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
            if stage.init is not None and stage.init.reading:
                tokens = ReadingTokens(tokenizer)
                begin_with_reading(model, tokens.words, tokens.passages(texts.passages), context.recipe.seed)

        starts = model_to_train(context, saved) if saved else first_model(stage, context, make_tokenizer, draw)
        super().__init__(stage, context, saved, *starts)
        self.stage = stage
        self.tokens = ReadingTokens(self.tokenizer)
        rows, key = stage.steps * stage.rows_per_step, context.key
        self.rows = (
            ReadingRows(self.texts, self.tokens, mix=data.mix, rows=rows, key=key)
            if data.index is None
            else SearchedRows(self.texts, self.tokens, open_index(data.index), mix=data.mix, rows=rows, key=key)
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
        if not (weight := self.stage.copying_weight):
            return super().learn(batch, started)
        loss = CopyingLoss(copying=weight)
        update = update_figures(
            self.budget, lambda budget: self.policy.minimise(batch, loss, CopyingUpdate, budget=budget), CopyingUpdate
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
        prompts = [self.rows.prompt(number, question) for number, question in enumerate(asked)]
        exam = examine(self.model, self.tokens, asked, prompts, log=self.context.folder.say)
        if whole:
            name = f"{self.context.stage.name}_held_out"
            file = self.context.folder.eval / f"{name}.json"
            contents = {"name": name, **exam.as_json()}
            self.context.folder.backlog.write(f"the evaluation {name}", lambda: write_eval(file, contents))
        return exam
