"""Next-token prediction on rows of text: the tiny base model from scratch, or fine-tuning."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.factories import add_tokens, context_of, pick_device, random_model
from sleuth.learn.batch import Batch, Row, collate
from sleuth.learn.logprobs import token_hits
from sleuth.learn.prefix_tree import pack
from sleuth.metrics.intervals import Measured
from sleuth.recipe import SupervisedRecipe, WorldTextRecipe
from sleuth.render import Renderer
from sleuth.stage_context import Saved, StageContext
from sleuth.training.held_out_thoughts import TOLD, HeldOutThoughts, told
from sleuth.training.loop import saves_at, train
from sleuth.training.sft_rows import lesson_rows
from sleuth.training.sft_trainer import SFTTrainer
from sleuth.types import Piece
from sleuth.world import citing
from sleuth.world.text import TextRows
from sleuth.world.tokens import make_tokenizer

HELD_OUT_ROWS = 100
HELD_OUT_KEY = (1,)
HELD_OUT = "held_out_"
"""Begins the names of the figures of held-out rows."""


def run_supervised(stage: SupervisedRecipe, run: StageContext) -> Path:
    """Train on the stage's rows; the last checkpoint."""
    saved = run.saved()
    if saved and saved.steps >= stage.last_step:
        return saved.checkpoint
    return train(stage, run, TextTrainer(stage, run, saved), saved)


class TextTrainer(SFTTrainer):
    """What a supervised stage teaches. Row i of the text is read in step i // rows_per_step, always."""

    def __init__(self, stage: SupervisedRecipe, run: StageContext, saved: Saved | None) -> None:
        super().__init__(stage, run, saved, *(run.begun(saved) if saved else _first_model(stage, run)))
        self.stage = stage
        self.renderer = Renderer(self.tokenizer)
        self.rows, self.protocol = lesson_rows(stage, run, self.tokenizer, context_of(self.model))
        self.thoughts = HeldOutThoughts(stage.held_out, run) if stage.held_out else None

    def opening(self) -> list[str]:
        """What the model makes of held-out thoughts before it is taught any."""
        if self.thoughts is None:
            return []
        found = self._measured("before")
        return [f"held out, before: {told(found)}"]

    def step(self, step: int) -> dict[str, Any]:
        """One optimiser step on the next rows; where the weights are saved, also what they hold of held-out rows."""
        started = time.monotonic()
        first = (step - 1) * self.stage.rows_per_step
        pieces = [self.rows.row(index) for index in range(first, first + self.stage.rows_per_step)]
        figures = self.learn(text_batch(pieces, self.renderer, self.stage.source_weight), started)
        if saves_at(self.stage, step) and isinstance(self.stage.data, WorldTextRecipe):
            data, budget = self.stage.data, self.stage.tokens_per_micro_batch
            found = self.run.ranks.broadcast(lambda: held_out(self.model, self.renderer, data, budget))
            figures |= {f"{HELD_OUT}{kind}": share for kind, share in found.items()}
        if saves_at(self.stage, step) and self.thoughts is not None:
            measured = self._measured("after")
            figures |= {f"{HELD_OUT}{name}": measured[name].value for name in TOLD}
        return figures

    def _measured(self, when: str) -> dict[str, Measured]:
        """By the first rank, which writes it down."""
        thoughts = self.thoughts
        assert thoughts is not None
        return self.run.ranks.broadcast(lambda: thoughts.measure(self.model, self.renderer, self.budget, when))

    def remarks(self, step: int, figures: dict[str, Any]) -> list[str]:
        """What is held of rows that are never trained."""
        found = [
            f"{name.removeprefix(HELD_OUT)} {value:.3f}"
            for name, value in figures.items()
            if name.startswith(HELD_OUT) and value is not None
        ]
        return [f"step {step}, held out: {', '.join(found)}"] if found else []


def held_out(model: PreTrainedModel, renderer: Renderer, data: WorldTextRecipe, budget: int) -> dict[str, float]:
    """By kind of row, the share of teachers' tokens that the model holds likeliest, on names and wordings that are
    never trained. Reading below 0.9 is too poor a base for reinforcement learning: what is found would not pay."""
    shares = {}
    for kind in data.mix:
        text = TextRows(data.people, {kind: 1.0}, HELD_OUT_KEY, split="test")
        batch = text_batch([text.row(index) for index in range(HELD_OUT_ROWS)], renderer, source_weight=0.0)
        parts = pack(batch, budget)
        shares[kind] = sum(int(token_hits(model, part.to(model.device)).sum()) for part in parts) / batch.tokens_trained
    return shares


def text_batch(rows: list[list[Piece]], renderer: Renderer, source_weight: float) -> Batch:
    """Rows of pieces as a batch: what a teacher wrote counts 1, what a source wrote `source_weight`, the rest
    nothing."""
    weight_of = {"teacher": 1.0, "source": source_weight}

    def row(pieces: list[Piece]) -> Row:
        segments = renderer.render_all(pieces)
        token_weight = [weight_of.get(segment.author, 0.0) for segment in segments for _ in segment.tokens]
        return Row(
            tokens=tuple(token for segment in segments for token in segment.tokens),
            trained=tuple(weight > 0 for weight in token_weight),
            token_weight=tuple(token_weight),
        )

    return collate([row(pieces) for pieces in rows])


def _first_model(stage: SupervisedRecipe, run: StageContext) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    if stage.init is None:
        model, tokenizer = run.begun(None)
    else:
        assert isinstance(stage.data, WorldTextRecipe)  # no other recipe with an init can be read
        more = (citing.words(), citing.TAGS) if {"placing", "citing"} & {*stage.data.mix} else ()
        tokenizer = make_tokenizer(stage.data.people, *more)
        model = random_model(stage.init, tokenizer, run.recipe.seed)
        cast(torch.nn.Module, model).to(pick_device(run.recipe.device))
    add_tokens(model, tokenizer, stage.tokens)
    return model, tokenizer
