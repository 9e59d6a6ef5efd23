"""Next-token prediction on rows of text: the tiny base model from scratch, or fine-tuning."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.build import optimisation_of, pick_device, random_model
from sleuth.learn.batch import Batch, Row, collate
from sleuth.learn.logprobs import token_hits
from sleuth.learn.policy import NotFiniteError, Policy, no_update
from sleuth.learn.prefix_tree import pack
from sleuth.recipe.stages import SupervisedRecipe
from sleuth.render import Renderer
from sleuth.stages.memory import TokenBudget
from sleuth.stages.stage_run import Saved, StageRun, last_step
from sleuth.stages.training import saves_at, train
from sleuth.types import Piece
from sleuth.world.text import TextRows
from sleuth.world.tokens import make_tokenizer

HELD_OUT_ROWS = 100
HELD_OUT_KEY = (1,)
HELD_OUT = "held_out_"
"""Begins the names of the figures of held-out rows."""


def run_supervised(stage: SupervisedRecipe, run: StageRun) -> Path:
    """Train on the stage's rows; the last checkpoint."""
    saved = run.saved()
    if saved and saved.steps >= last_step(stage):
        return saved.checkpoint
    return train(stage, run, Reader(stage, run, saved), saved)


class Reader:
    """The objects of one supervised stage, and its step. Row i of the text is read in step i // rows_per_step,
    always."""

    def __init__(self, stage: SupervisedRecipe, run: StageRun, saved: Saved | None) -> None:
        self.stage = stage
        self.run = run
        self.model, self.tokenizer = run.load(saved.checkpoint) if saved else _first_model(stage, run)
        self.policy = Policy(self.model, optimisation_of(stage), gradient_checkpointing=stage.gradient_checkpointing)
        self.budget = TokenBudget(stage.tokens_per_micro_batch, run.folder.say)
        if saved:
            self.policy.load_state_dict(saved.state["policy"])
            self.budget.tokens = saved.state["budget"]
        self.renderer = Renderer(self.tokenizer)
        self.rows = TextRows(stage.data.people, stage.data.mix, run.key)

    def opening(self) -> list[str]:
        """Nothing is probed: the rows are what they are."""
        return []

    def step(self, step: int) -> dict[str, Any]:
        """One optimiser step on the next rows; where the weights are saved, also what they hold of held-out rows."""
        started = time.monotonic()
        first = (step - 1) * self.stage.rows_per_step
        pieces = [self.rows.row(index) for index in range(first, first + self.stage.rows_per_step)]
        batch = text_batch(pieces, self.renderer, self.stage.source_weight)
        try:
            update = asdict(self.budget.run(lambda budget: self.policy.supervise(batch, budget=budget)))
        except NotFiniteError as error:
            update = no_update() | {"not_finite": str(error)}
        figures = update | {"seconds_update": time.monotonic() - started}
        if saves_at(self.stage, step):
            found = held_out(self.model, self.renderer, self.stage)
            figures |= {f"{HELD_OUT}{kind}": share for kind, share in found.items()}
        return figures

    def note(self, figures: dict[str, Any]) -> str:
        """The loss is what falls here."""
        return "no update" if figures["loss"] is None else f"loss {figures['loss']:.3f}"

    def remarks(self, step: int, figures: dict[str, Any]) -> list[str]:
        """What is held of rows that are never trained."""
        found = [
            f"{name.removeprefix(HELD_OUT)} {share:.3f}" for name, share in figures.items() if name.startswith(HELD_OUT)
        ]
        return [f"step {step}, held out: {', '.join(found)}"] if found else []

    def evidence(self, alarm: str) -> str:
        """There are no rollouts."""
        return ""

    def save(self, step: int) -> Path:
        """A checkpoint after `step` steps."""
        state = {"policy": self.policy.state_dict(), "budget": self.budget.tokens}
        return self.run.save(step, self.model, self.tokenizer, state)


def held_out(model: PreTrainedModel, renderer: Renderer, stage: SupervisedRecipe) -> dict[str, float]:
    """By kind of row, the share of teachers' tokens that the model holds likeliest, on names and wordings that are
    never trained. Reading below 0.9 is too poor a base for reinforcement learning: what is found would not pay."""
    shares = {}
    for kind in stage.data.mix:
        text = TextRows(stage.data.people, {kind: 1.0}, HELD_OUT_KEY, split="test")
        batch = text_batch([text.row(index) for index in range(HELD_OUT_ROWS)], renderer, source_weight=0.0)
        parts = pack(batch, stage.tokens_per_micro_batch)
        shares[kind] = sum(int(token_hits(model, part.to(model.device)).sum()) for part in parts) / batch.tokens_trained
    return shares


def text_batch(rows: list[list[Piece]], renderer: Renderer, source_weight: float) -> Batch:
    """Rows of pieces as a batch: what a teacher wrote counts 1, what a source wrote `source_weight`, the rest
    nothing."""
    weight_of = {"teacher": 1.0, "source": source_weight}

    def row(pieces: list[Piece]) -> Row:
        segments = [renderer.render(piece) for piece in pieces]
        emphasis = [weight_of.get(segment.author, 0.0) for segment in segments for _ in segment.tokens]
        return Row(
            tokens=tuple(token for segment in segments for token in segment.tokens),
            trained=tuple(weight > 0 for weight in emphasis),
            emphasis=tuple(emphasis),
        )

    return collate([row(pieces) for pieces in rows])


def _first_model(stage: SupervisedRecipe, run: StageRun) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    if stage.init is None:
        return run.load(run.model)
    tokenizer = make_tokenizer(stage.data.people)
    model = random_model(stage.init, tokenizer, run.recipe.seed)
    cast(torch.nn.Module, model).to(pick_device(run.recipe.device))
    return model, tokenizer
