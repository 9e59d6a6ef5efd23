"""The rows of a supervised stage: text of a generated world, documents with or without thoughts, or prompts with their
answers; and what the stage is checked for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, cast

from transformers import PreTrainedTokenizerFast

from sleuth.answers.scorers.scorer import STRICT
from sleuth.data.excerpts import excerpts_of
from sleuth.data.questions import named_rows, questions_hash, select_tasks
from sleuth.episodes.environments import setting_of
from sleuth.episodes.protocol import ProtocolCard
from sleuth.episodes.setting import Setting
from sleuth.read.data_table import ReadingRecipe
from sleuth.read.texts import read_reading_texts, require_indexed
from sleuth.read.tokens import ROW_TOKENS, SEARCHED_ROW_TOKENS
from sleuth.recipe import AnsweredRowsRecipe, SupervisedRecipe, TextRecipe, WorldTextRecipe
from sleuth.render import Renderer, check_writable
from sleuth.think.stage_tables import ThoughtTextRecipe
from sleuth.think.thoughts import THINK, interleaved, require_apart, thought_documents
from sleuth.training.infinite_sampler import InfiniteSampler
from sleuth.training.stage_context import StageContext, StageInputs
from sleuth.types import Document, Piece, SleuthError, Task
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


class ThoughtRows:
    """Documents with the thoughts of a teacher in place, at most `most` tokens of each, shuffled in each epoch. In a
    share of the rows, `empty`, the thoughts are empty and not trained."""

    def __init__(
        self, documents: Sequence[Document], renderer: Renderer, most: int, empty: float, key: tuple[int, ...]
    ) -> None:
        self.order = InfiniteSampler(documents, seed=key)
        self.renderer = renderer
        self.most = most
        self.empty = empty
        self.key = key

    def row(self, index: int) -> list[Piece]:
        """The text with its thoughts between their tags."""
        document = self.order.at(index)
        if random.Random(f"empty {self.key} {index}").random() >= self.empty:
            return interleaved(document, self.renderer, self.most)
        silent = replace(document, thoughts=tuple(replace(thought, text="") for thought in document.thoughts))
        return [
            replace(piece, author="env") if piece.author == "teacher" else piece
            for piece in interleaved(silent, self.renderer, self.most)
        ]


def training_rows(
    stage: SupervisedRecipe, context: StageContext, tokenizer: PreTrainedTokenizerFast, positions: int
) -> tuple[TrainingRows, ProtocolCard | None]:
    """The rows of a stage, and the protocol of their prompts if they have any. `positions` are those of the model."""
    if isinstance(stage.data, WorldTextRecipe):
        return TextRows(stage.data.people, stage.data.mix, context.key, distracted=stage.data.distracted), None
    if isinstance(stage.data, TextRecipe):
        return Excerpts(excerpts_of(stage.data, tokenizer).tasks, context.key), None
    if isinstance(stage.data, ThoughtTextRecipe):
        documents, renderer = thought_documents(stage.data), Renderer(tokenizer)
        return ThoughtRows(documents, renderer, stage.data.row_tokens, stage.data.empty, context.key), None
    data = cast(AnsweredRowsRecipe, stage.data)  # those of `reading` have a trainer of their own
    read = answered_tasks(data)
    env, longest = context.recipe.refine_env_and_context(context.index)
    setting = setting_of(env, tokenizer, read)
    tasks = context.fitting(data, setting, tokenizer, read, longest or positions)
    protocol = setting.protocol(STRICT.name, longest or positions, questions_sha256=questions_hash(tasks))
    return AnsweredRows(tasks, setting, context.key), protocol


def require_inputs(stage: SupervisedRecipe, inputs: StageInputs) -> list[Task]:
    """The tasks of the stage; none if it trains on text that is not cut into tasks. Raises SleuthError if texts, rows
    or answers do not fit the model, and if a held-out text is trained too."""
    texts = _require_texts(stage, inputs.tokenizer, inputs.positions)
    if not isinstance(stage.data, AnsweredRowsRecipe):
        return texts
    tasks = answered_tasks(stage.data)
    env, context = inputs.recipe.refine_env_and_context(inputs.index)
    return inputs.setting(stage.data, env, tasks, context or inputs.positions)[1]


def _require_texts(stage: SupervisedRecipe, tokenizer: PreTrainedTokenizerFast | None, positions: int) -> list[Task]:
    tasks: list[Task] = []
    trained: list[str] = []
    ids: set[str] = set()
    longest = {}
    if isinstance(stage.data, TextRecipe) and tokenizer is not None:
        tasks = excerpts_of(stage.data, tokenizer).tasks
        longest["data.prefix_tokens + data.suffix_tokens"] = stage.data.prefix_tokens + stage.data.suffix_tokens
        trained = [task.question + task.reference for task in tasks]
        if stage.held_out is not None and stage.held_out.texts == stage.data.texts:
            ids = {task.continuation.document for task in tasks if task.continuation is not None}
    if isinstance(stage.data, ThoughtTextRecipe):
        longest["data.row_tokens"] = stage.data.row_tokens
        trained = [document.text for document in thought_documents(stage.data)]
    if stage.data.kind == "reading":
        data = cast(ReadingRecipe, stage.data)
        reading, longest_row = read_reading_texts(data), ROW_TOKENS
        if data.index is not None:
            require_indexed(reading, data.index)
            longest_row = SEARCHED_ROW_TOKENS
        longest['the longest row of data.kind = "reading"'] = longest_row
    if stage.held_out is not None:
        longest["held_out.row_tokens"] = stage.held_out.row_tokens
        require_apart(trained, thought_documents(stage.held_out), ids)
    if tokenizer is not None and (stage.held_out is not None or isinstance(stage.data, ThoughtTextRecipe)):
        check_writable(tokenizer, (THINK.open, THINK.close))
    for key, tokens in longest.items():
        if tokens > positions:
            raise SleuthError(f"{key} = {tokens} is more than the {positions} positions of the model")
    return tasks


def answered_tasks(data: AnsweredRowsRecipe) -> list[Task]:
    """The tasks of a file of rows with answers. Raises SleuthError for a row without one."""
    tasks = select_tasks(data)
    if unanswered := [task for task in tasks if not task.reference]:
        named = named_rows(data.questions, unanswered)
        raise SleuthError(f"{data.questions}: {named} of {len(tasks):,}: no `answer` to train on")
    return tasks
