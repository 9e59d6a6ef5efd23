"""Supervised fine-tuning, or pretraining from random weights: next-token prediction on rows of text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth import family
from sleuth.answers.scorers.scorer import STRICT
from sleuth.data.excerpts import excerpts_of
from sleuth.data.questions import named_rows, questions_hash, select_tasks
from sleuth.episodes.protocol import ProtocolCard
from sleuth.episodes.setting import Setting
from sleuth.evaluation.intervals import Measured
from sleuth.learn.batch import Batch, Row, collate
from sleuth.learn.logprobs import packer_of, token_hits
from sleuth.learn.models import add_tokens, context_of, place_weights, random_model
from sleuth.learn.policy import TokenBudget
from sleuth.recipe import AnsweredRowsRecipe, InitRecipe, SupervisedRecipe, TextRecipe, TrainingRecipe, WorldTextRecipe
from sleuth.render import Renderer
from sleuth.training.learning import model_to_train, policy_of, token_budget
from sleuth.training.loop import Figures, InfiniteSampler, Trainer, train, update_figures
from sleuth.training.stage_context import Saved, StageContext, StageInputs, finished, keep_fitting, last_saved
from sleuth.types import Piece, SleuthError, Task
from sleuth.world.text import TextRows, make_text_tokenizer

HELD_OUT_ROWS = 100
HELD_OUT_KEY = (1,)
HELD_OUT = "held_out_"
"""The prefix of the figures of held-out rows."""


def run(stage: SupervisedRecipe, context: StageContext) -> Path:
    """Train on the stage's rows; the last checkpoint."""
    return run_with(TextTrainer, stage, context)


def run_with(
    make: Callable[[SupervisedRecipe, StageContext, Saved | None], Trainer],
    stage: SupervisedRecipe,
    context: StageContext,
) -> Path:
    """Train with a trainer, unless the stage is finished; the last checkpoint."""
    saved = last_saved(context)
    if (last := finished(context, saved)) is not None:
        return last
    return train(stage, context, make(stage, context, saved), saved)


class SFTTrainer(Trainer):
    """A model with its policy and its token budget, new or resumed from `saved`. Subclasses add `step`."""

    teacher_sha256: str | None = None
    """Of the weights of the teacher whose episodes are trained, if there is one."""

    def __init__(
        self,
        stage: TrainingRecipe,
        context: StageContext,
        saved: Saved | None,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
    ) -> None:
        self.context = context
        self.model = model
        self.tokenizer = tokenizer
        self.policy = policy_of(stage, model, ranks=context.ranks)
        self.budget = token_budget(context, saved)
        if saved:
            self.policy.load_state_dict(saved.state["policy"])

    def learn(self, batch: Batch, started: float) -> Figures:
        """One optimiser step on a batch; its figures. `started` is the time at which the batch was begun."""
        update = update_figures(self.budget, lambda budget: self.policy.supervise(batch, budget=budget))
        return update | {"seconds_update": time.monotonic() - started}

    def note(self, figures: Figures) -> str:
        """The loss."""
        return "no update" if figures["loss"] is None else f"loss {figures['loss']:.3f}"

    def state(self) -> dict[str, Any]:
        return {"teacher": self.teacher_sha256}


class TextTrainer(SFTTrainer):
    """The trainer of a supervised stage. Row i of the text is always trained in step i // rows_per_step."""

    def __init__(self, stage: SupervisedRecipe, context: StageContext, saved: Saved | None) -> None:
        def make_tokenizer(init: InitRecipe) -> PreTrainedTokenizerFast:
            assert isinstance(stage.data, WorldTextRecipe)  # the recipe's checks allow no other data with an init here
            return make_text_tokenizer(stage.data)

        model, tokenizer = model_to_train(context, saved) if saved else first_model(stage, context, make_tokenizer)
        super().__init__(stage, context, saved, model, tokenizer)
        self.stage = stage
        rows = import_module(stage.data.rows)
        self.rows, self.protocol = rows.training_rows(stage, context, tokenizer, context_of(model))
        self.renderer = Renderer(tokenizer, self.protocol.dialect.tags if self.protocol else ())
        held_out = stage.held_out
        self.held_out: HeldOut | None = family.load_named(held_out.measured)(held_out, context) if held_out else None

    def opening(self) -> list[str]:
        """The held-out figures before training."""
        if self.held_out is None:
            return []
        measured = self._measured(self.held_out, "before")
        shown = ", ".join(f"{name} {one.formatted()}" for name, one in measured.items() if one.value is not None)
        return [f"held out, before: {shown}"]

    def step(self, step: int) -> Figures:
        """One optimiser step on the next rows; at a checkpoint also the figures of held-out rows."""
        started = time.monotonic()
        first = (step - 1) * self.stage.rows_per_step
        pieces = [self.rows.row(index) for index in range(first, first + self.stage.rows_per_step)]
        figures = self.learn(text_batch(pieces, self.renderer, self.stage.source_weight), started)
        if self.stage.saves_at(step) and isinstance(self.stage.data, WorldTextRecipe):
            data = self.stage.data
            found = held_out(self.model, self.renderer, data, self.budget)
            figures |= {f"{HELD_OUT}{kind}": share for kind, share in found.items()}
        if self.stage.saves_at(step) and self.held_out is not None:
            measured = self._measured(self.held_out, "after")
            figures |= {f"{HELD_OUT}{name}": figure.value for name, figure in measured.items()}
        return figures

    def _measured(self, held_out: HeldOut, when: str) -> dict[str, Measured]:
        """The shown figures."""
        return held_out.shown(held_out.measure(self.model, self.renderer, self.budget, when))

    def remarks(self, step: int, figures: Figures) -> list[str]:
        """The figures of rows that are never trained."""
        found = [
            f"{name.removeprefix(HELD_OUT)} {value:.3f}"
            for name, value in figures.items()
            if name.startswith(HELD_OUT) and value is not None
        ]
        return [f"step {step}, held out: {', '.join(found)}"] if found else []


class HeldOut(Protocol):
    """What a stage measures and never trains, `[stage.held_out]`: before the first step and at checkpoints."""

    def measure(
        self, model: PreTrainedModel, renderer: Renderer, budget: TokenBudget, when: str
    ) -> dict[str, Measured]:
        """Every figure, written to `eval/STAGE_WHEN.json`. On several ranks each calls it."""
        ...

    def shown(self, figures: Mapping[str, Measured]) -> dict[str, Measured]:
        """The figures that are printed and logged."""
        ...


def held_out(
    model: PreTrainedModel, renderer: Renderer, data: WorldTextRecipe, budget: TokenBudget
) -> dict[str, float]:
    """By kind of row, the share of the teacher's tokens that are the model's most likely ones, on names and wordings
    that are never trained. Below 0.9 the base reads too poorly for reinforcement learning: searches would not pay."""

    def share(kind: str) -> float:
        text = TextRows(data.people, {kind: 1.0}, HELD_OUT_KEY, split="test")

        def count(mine: Sequence[int], _: int) -> list[tuple[int, int]]:
            batch = text_batch([text.row(index) for index in mine], renderer, source_weight=0.0)
            return [(budget.run(partial(_count_hits, model, batch)), batch.tokens_trained)]

        hits, tokens = zip(*budget.ranks.dealt(range(HELD_OUT_ROWS), count), strict=True)
        return sum(hits) / sum(tokens)

    return {kind: share(kind) for kind in data.mix}


def _count_hits(model: PreTrainedModel, batch: Batch, budget: int) -> int:
    return sum(int(token_hits(model, part.to(model.device)).sum()) for part in packer_of(model)(batch, budget))


def text_batch(rows: list[list[Piece]], renderer: Renderer, source_weight: float) -> Batch:
    """Rows of pieces as a batch, with weight 1 for a teacher's tokens, `source_weight` for a source's, and 0 else."""
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


def first_model(
    stage: SupervisedRecipe,
    context: StageContext,
    make_tokenizer: Callable[[InitRecipe], PreTrainedTokenizerFast],
    draw: Callable[[PreTrainedModel, PreTrainedTokenizerFast], None] = lambda model, tokenizer: None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The model and tokenizer that a stage begins with: those of the run, or random weights, of which `draw` overwrites
    some."""
    if stage.init is None:
        model, tokenizer = model_to_train(context, None)
    else:
        tokenizer = make_tokenizer(stage.init)
        model = random_model(stage.init, tokenizer, context.recipe.seed)
        draw(model, tokenizer)
        place_weights(model, dtype=context.recipe.dtype, device=context.recipe.device)
    add_tokens(model, tokenizer, stage.tokens)
    return model, tokenizer


class AnsweredRows:
    """The prompt of each task followed by its answer, shuffled in each epoch."""

    def __init__(self, tasks: Sequence[Task], setting: Setting, key: tuple[int, ...]) -> None:
        self.order = InfiniteSampler(tasks, seed=key)
        self.setting = setting

    def row(self, index: int) -> list[Piece]:
        """The prompt, and the task's answer."""
        task = self.order.at(index)
        opening = asyncio.run(self.setting.env(task).open())
        return [*opening.pieces, Piece(text=task.reference, author="teacher")]


class Excerpts:
    """Prefixes with their suffixes as one text each, shuffled in each epoch."""

    def __init__(self, tasks: Sequence[Task], key: tuple[int, ...]) -> None:
        self.order = InfiniteSampler(tasks, seed=key)

    def row(self, index: int) -> list[Piece]:
        """The tokens that the document was cut into, unchanged."""
        text = self.order.at(index).continuation
        assert text is not None  # all of these tasks are texts to continue
        return [
            Piece(text=segment.text, author="source", tokens=segment.tokens) for segment in (text.prefix, text.suffix)
        ]


def training_rows(
    stage: SupervisedRecipe, context: StageContext, tokenizer: PreTrainedTokenizerFast, positions: int
) -> tuple[Any, ProtocolCard | None]:
    """The rows of a stage, whose `row(index)` is a list of pieces, for any index from 0, and the protocol of their
    prompts if they have any. `positions` are those of the model."""
    if isinstance(stage.data, WorldTextRecipe):
        return TextRows(stage.data.people, stage.data.mix, context.key, distracted=stage.data.distracted), None
    if isinstance(stage.data, TextRecipe):
        return Excerpts(excerpts_of(stage.data, tokenizer).tasks, context.key), None
    data = cast(AnsweredRowsRecipe, stage.data)  # the other kinds have a module of their own
    read = answered_tasks(data)
    env, longest = context.recipe.refine_env_and_context(context.index)
    setting = env.setting(tokenizer, read)
    tasks = keep_fitting(context, data, setting, tokenizer, read, longest or positions)
    protocol = setting.protocol(STRICT.name, longest or positions, questions_sha256=questions_hash(tasks))
    return AnsweredRows(tasks, setting, context.key), protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTexts:
    """What a stage is checked for: the `tasks` that its texts are cut into, the texts themselves, the `ids` of the
    documents that they are from, and the recipe keys that decide how many tokens a row may have."""

    tasks: list[Task] = field(default_factory=list)
    texts: Sequence[str] = ()
    ids: Collection[str] = ()
    longest: Mapping[str, int] = field(default_factory=dict)


def require_texts(stage: SupervisedRecipe, tokenizer: PreTrainedTokenizerFast | None) -> TrainedTexts:
    """What the stage trains; nothing where it is not known before the run. Raises SleuthError for texts that cannot be
    trained."""
    data = stage.data
    if not isinstance(data, TextRecipe) or tokenizer is None:
        return TrainedTexts()
    tasks = excerpts_of(data, tokenizer).tasks
    return TrainedTexts(
        tasks=tasks,
        texts=[task.question + task.reference for task in tasks],
        ids={task.continuation.document for task in tasks if task.continuation is not None},
        longest={"data.prefix_tokens + data.suffix_tokens": data.prefix_tokens + data.suffix_tokens},
    )


def require_inputs(stage: SupervisedRecipe, inputs: StageInputs) -> list[Task]:
    """The tasks of the stage; none if it trains on text that is not cut into tasks. Raises SleuthError if texts, rows
    or answers do not fit the model, and if a held-out text is trained too."""
    trained = import_module(stage.data.rows).require_texts(stage, inputs.tokenizer)
    longest = dict(trained.longest)
    if stage.held_out is not None:
        longest |= family.load_named(stage.held_out.measured).require(stage, trained, inputs.tokenizer)
    for key, tokens in longest.items():
        if tokens > inputs.positions:
            raise SleuthError(f"{key} = {tokens} is more than the {inputs.positions} positions of the model")
    if not isinstance(stage.data, AnsweredRowsRecipe):
        return trained.tasks
    tasks = answered_tasks(stage.data)
    env, context = inputs.recipe.refine_env_and_context(inputs.index)
    return inputs.setting(stage.data, env, tasks, context or inputs.positions)[1]


def answered_tasks(data: AnsweredRowsRecipe) -> list[Task]:
    """The tasks of a file of rows with answers. Raises SleuthError for a row without one."""
    tasks = select_tasks(data)
    if unanswered := [task for task in tasks if not task.reference]:
        named = named_rows(data.questions, unanswered)
        raise SleuthError(f"{data.questions}: {named} of {len(tasks):,}: no `answer` to train on")
    return tasks
