"""Next-token prediction on rows of text: the tiny base model from scratch, or fine-tuning."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.build import optimisation_of, pick_device, random_model
from sleuth.learn.batch import Batch, Row, collate
from sleuth.learn.logprobs import token_hits
from sleuth.learn.policy import Policy
from sleuth.learn.prefix_tree import pack
from sleuth.recipe.stages import SupervisedRecipe
from sleuth.render import Renderer
from sleuth.runs.progress import ProgressBar
from sleuth.stages.stage_run import StageRun, last_step
from sleuth.types import Piece
from sleuth.world.text import TextRows
from sleuth.world.tokens import make_tokenizer

HELD_OUT_ROWS = 100
HELD_OUT_KEY = (1,)


def run_supervised(stage: SupervisedRecipe, run: StageRun) -> Path:
    """Train on the stage's rows; the last checkpoint. Row i of the text is read in step i // rows_per_step, always."""
    saved = run.saved()
    begin, end = saved.steps if saved else 0, last_step(stage)
    if saved and begin >= end:
        return saved.checkpoint
    model, tokenizer = run.load(saved.checkpoint) if saved else _first_model(stage, run)
    policy = Policy(model, optimisation_of(stage), gradient_checkpointing=stage.gradient_checkpointing)
    if saved:
        policy.load_state_dict(saved.state["policy"])
    renderer = Renderer(tokenizer)
    rows = TextRows(stage.data.people, stage.data.mix, run.key)
    run.folder.metrics.rewind(stage.name, run.first_step + begin)
    checkpoint = saved.checkpoint if saved else Path(run.model)
    with ProgressBar(stage.name, end, begin) as bar:
        for step in range(begin + 1, end + 1):
            started = time.monotonic()
            first = (step - 1) * stage.rows_per_step
            pieces = [rows.row(index) for index in range(first, first + stage.rows_per_step)]
            update = policy.supervise(
                text_batch(pieces, renderer, stage.source_weight), budget=stage.tokens_per_micro_batch
            )
            figures = asdict(update) | {"seconds_update": time.monotonic() - started}
            bar.advance(note=f"loss {update.loss:.3f}")
            if step % stage.save_every == 0 or step == end:
                found = held_out(model, renderer, stage)
                figures |= {f"held_out_{kind}": share for kind, share in found.items()}
                bar.say(f"step {step}, held out: " + ", ".join(f"{kind} {share:.3f}" for kind, share in found.items()))
            run.folder.metrics.append(stage.name, run.first_step + step, figures)
            if step % stage.save_every == 0 or step == end:
                state = {"policy": policy.state_dict()}
                checkpoint = run.save(step, model, tokenizer, state, keep=stage.keep)
    return checkpoint


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
