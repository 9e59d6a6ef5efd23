"""The rows of a supervised stage: text of a generated world, documents, or prompts with their answers; and what the
stage is checked for."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol, cast

from transformers import PreTrainedTokenizerFast

from sleuth import family
from sleuth.answers.scorers.scorer import STRICT
from sleuth.data.excerpts import excerpts_of
from sleuth.data.questions import named_rows, questions_hash, select_tasks
from sleuth.episodes.protocol import ProtocolCard
from sleuth.episodes.setting import Setting
from sleuth.recipe import AnsweredRowsRecipe, SupervisedRecipe, TextRecipe, WorldTextRecipe
from sleuth.training.infinite_sampler import InfiniteSampler
from sleuth.training.stage_context import StageContext, StageInputs, keep_fitting
from sleuth.types import Piece, SleuthError, Task
from sleuth.world.text import TextRows


class TrainingRows(Protocol):
    """An endless sequence of rows, each a function of its index; all of what a `teacher` wrote in one is trained."""

    def row(self, index: int) -> list[Piece]: ...


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
) -> tuple[TrainingRows, ProtocolCard | None]:
    """The rows of a stage, and the protocol of their prompts if they have any. `positions` are those of the model."""
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
