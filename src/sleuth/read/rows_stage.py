"""The trainer of `data.kind = "reading"`: rows of single sentences or of searches, a loss on where the copying head
attends, and exact match on articles that are never trained.

The copying head is the first one of the last layer, which is taught to attend to the token that the answer copies. The
loss of an answer alone does not find it: attention spread over a sentence raises no logit by much. A loss on its
attention, -log of its weight on the token to copy, does (supervised attention, arXiv:1609.04186). It is computed from
the queries and keys of the same forward pass.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.learn.batch import Batch, collate
from sleuth.learn.losses import SupervisedLoss, supervised_loss
from sleuth.learn.policy import Update
from sleuth.learn.prefix_tree import Pack, gather_rows
from sleuth.read.exam import ReadingExam, examine
from sleuth.read.initial_weights import COPYING_HEAD, begin_with_reading
from sleuth.read.rows import ReadingRows, SearchedRows
from sleuth.read.texts import ReadingRecipe, read_reading_texts
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyingUpdate(Update):
    """What one step did: `copying_loss` is minus the log of the head's weight on the token to copy, 0 where none is; a
    mean as the others."""

    copying_loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyingLoss(SupervisedLoss):
    """Cross-entropy on the trained tokens, plus `copying` times that of where the copying head attends, on those that
    copy a token, if the batch has sources."""

    copying: float

    @property
    def is_sum_over_tokens(self) -> bool:
        return False

    def attention_loss(self) -> CopyingHead:
        return CopyingHead(self.copying)


class CopyingHead:
    """The loss, times `weight`, of where the copying head attends in a forward pass over a prefix tree."""

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self._kept: tuple[Tensor, Tensor, float] | None = None

    def observe(self, layer: Any, query: Tensor, key: Tensor, scale: float) -> None:
        """Keeps the queries and keys of the head: `query` (1, H, N, D), `key` (1, kv_heads, N, D)."""
        if layer.layer_idx == layer.config.num_hidden_layers - 1:
            self._kept = query[0, COPYING_HEAD], key[0, COPYING_HEAD], scale

    def loss(self, part: Pack) -> tuple[Tensor, dict[str, Tensor]]:
        """Its share in the loss of the step, and the statistic `copying_loss`."""
        attended = self._logprobs(part)
        return self.weight * supervised_loss(attended, part.rows.weights), {"copying_loss": -attended.detach()}

    def _logprobs(self, pack: Pack) -> Tensor:
        """(R, T) fp32: the log of the head's weight, where token t is predicted, on the token of the row that t copies;
        0 where it copies none."""
        rows, nodes, host = pack.rows, pack.tree.nodes, pack.on_host.rows
        assert self._kept is not None  # the forward pass is over
        assert rows.sources is not None
        assert host.sources is not None
        query, key, scale = self._kept
        row, place = map(pack.send, ((host.sources >= 0) & host.trained).nonzero(as_tuple=True))  # (M,), (M,)
        queries = gather_rows(query, nodes[row, place - 1])  # (M, D)
        keys = gather_rows(key, nodes.flatten()).view(*nodes.shape, -1)  # (R, T, D)
        scores = torch.einsum("md,mtd->mt", queries.float(), gather_rows(keys, row).float()) * scale
        ahead = torch.arange(nodes.shape[1], device=nodes.device) >= place[:, None]
        of_sources = scores.masked_fill(ahead, -torch.inf).log_softmax(dim=1).gather(1, rows.sources[row, place, None])
        return torch.zeros_like(rows.weights).index_put((row, place), of_sources[:, 0])


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
            self.exam = self._examine(whole=step == self.stage.last_step)
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
        asked = [one.of_sentence() for one in asked]
        prompts = [self.rows.prompt(number, question) for number, question in enumerate(asked)]
        exam = examine(self.model, self.tokens, asked, prompts, log=self.context.folder.say, ranks=self.context.ranks)
        if whole:
            name = f"{self.context.stage.name}_held_out"
            file = self.context.folder.eval / f"{name}.json"
            contents = {"name": name, **exam.as_json()}
            self.context.folder.backlog.write(f"the evaluation {name}", lambda: write_eval(file, contents))
        return exam
