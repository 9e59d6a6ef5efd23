"""What a supervised stage teaches, row by row: text of a generated world, documents with thoughts in them or without,
or prompts with answers of their own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from transformers import PreTrainedTokenizerFast

from sleuth.data.questions import questions_hash, select_tasks
from sleuth.factories import (
    THINK,
    Setting,
    excerpts_of,
    interleaved,
    require_apart,
    setting_of,
    thought_documents,
)
from sleuth.recipe import AnsweredRowsRecipe, SupervisedRecipe, TextRecipe, ThoughtTextRecipe, WorldTextRecipe
from sleuth.render import Renderer, check_writable
from sleuth.rewards.scorers.scorer import STRICT
from sleuth.runs.protocol import ProtocolCard
from sleuth.stage_context import StageContext
from sleuth.training.infinite_sampler import InfiniteSampler
from sleuth.types import Document, Piece, SleuthError, Task
from sleuth.world.text import TextRows


class LessonRows(Protocol):
    """An endless text of rows, each a function of its place; of what a `teacher` wrote in one, all is learned."""

    def row(self, index: int) -> list[Piece]: ...


class AnsweredRows:
    """Tasks as their environment asks them, each with its own answer behind, shuffled anew each time through."""

    def __init__(self, tasks: Sequence[Task], setting: Setting, key: tuple[int, ...]) -> None:
        self.order = InfiniteSampler(tasks, seed=key)
        self.setting = setting

    def row(self, index: int) -> list[Piece]:
        """The prompt, and the answer that the row brings."""
        task = self.order.at(index)
        opening = asyncio.run(self.setting.env(task).open())
        return [*opening.pieces, Piece(text=task.reference, author="teacher")]


class Excerpts:
    """Prefixes with their suffixes as one text each, shuffled anew each time through."""

    def __init__(self, tasks: Sequence[Task], key: tuple[int, ...]) -> None:
        self.order = InfiniteSampler(tasks, seed=key)

    def row(self, index: int) -> list[Piece]:
        """The very tokens that the document was cut into."""
        text = self.order.at(index).continuation
        assert text is not None  # these tasks are all texts to continue
        return [
            Piece(text=segment.text, author="source", tokens=segment.tokens) for segment in (text.prefix, text.suffix)
        ]


class ThoughtRows:
    """Documents with their thoughts in place, of which a teacher wrote the thoughts, shuffled anew each time through;
    at most `most` tokens of each. In a share of the rows, `empty`, nothing was thought, which nobody is to imitate."""

    def __init__(
        self, documents: Sequence[Document], renderer: Renderer, most: int, empty: float, key: tuple[int, ...]
    ) -> None:
        self.order = InfiniteSampler(documents, seed=key)
        self.renderer = renderer
        self.most = most
        self.empty = empty
        self.key = key

    def row(self, index: int) -> list[Piece]:
        """The text, and its thoughts between their tags."""
        document = self.order.at(index)
        if random.Random(f"empty {self.key} {index}").random() >= self.empty:
            return interleaved(document, self.renderer, self.most)
        silent = replace(document, thoughts=tuple(replace(thought, text="") for thought in document.thoughts))
        return [
            replace(piece, author="env") if piece.author == "teacher" else piece
            for piece in interleaved(silent, self.renderer, self.most)
        ]


def lesson_rows(
    stage: SupervisedRecipe, run: StageContext, tokenizer: PreTrainedTokenizerFast, holds: int
) -> tuple[LessonRows, ProtocolCard | None]:
    """The rows of a stage, and what they are asked under, where they are asked anything, by a model that `holds` so
    many tokens."""
    if isinstance(stage.data, WorldTextRecipe):
        return TextRows(stage.data.people, stage.data.mix, run.key), None
    if isinstance(stage.data, TextRecipe):
        return Excerpts(excerpts_of(stage.data, tokenizer).tasks, run.key), None
    if isinstance(stage.data, ThoughtTextRecipe):
        documents, renderer = thought_documents(stage.data), Renderer(tokenizer)
        return ThoughtRows(documents, renderer, stage.data.row_tokens, stage.data.empty, run.key), None
    tasks = answered_tasks(stage.data)
    env, context = run.recipe.refine_env_and_context(run.index)
    setting = setting_of(env, tokenizer, tasks)
    protocol = setting.protocol(STRICT.name, context or holds, questions_sha256=questions_hash(tasks))
    return AnsweredRows(tasks, setting, run.key), protocol


def require_texts(stage: SupervisedRecipe, tokenizer: PreTrainedTokenizerFast | None, holds: int) -> list[Task]:
    """Read the texts that a stage teaches or measures on, by a model that `holds` so many tokens; those that it cuts
    into tasks. Raises SleuthError for what does not fit, and where a held-out text is taught too."""
    tasks: list[Task] = []
    taught: list[str] = []
    ids: set[str] = set()
    longest = {}
    if isinstance(stage.data, TextRecipe) and tokenizer is not None:
        tasks = excerpts_of(stage.data, tokenizer).tasks
        longest["data.prefix_tokens + data.suffix_tokens"] = stage.data.prefix_tokens + stage.data.suffix_tokens
        taught = [task.question + task.reference for task in tasks]
        if stage.held_out is not None and stage.held_out.texts == stage.data.texts:
            ids = {task.continuation.document for task in tasks if task.continuation is not None}
    if isinstance(stage.data, ThoughtTextRecipe):
        longest["data.row_tokens"] = stage.data.row_tokens
        taught = [document.text for document in thought_documents(stage.data)]
    if stage.held_out is not None:
        longest["held_out.row_tokens"] = stage.held_out.row_tokens
        require_apart(taught, thought_documents(stage.held_out), ids)
    if tokenizer is not None and (stage.held_out is not None or isinstance(stage.data, ThoughtTextRecipe)):
        check_writable(tokenizer, (THINK.open, THINK.close))
    for key, tokens in longest.items():
        if tokens > holds:
            raise SleuthError(f"{key} = {tokens} is more than the {holds} positions of the model")
    return tasks


def answered_tasks(data: AnsweredRowsRecipe) -> list[Task]:
    """The tasks of a file of rows that bring an answer. Raises SleuthError for one that brings none."""
    tasks = select_tasks(data)
    mute = next((task for task in tasks if not task.reference), None)
    if mute is not None:
        raise SleuthError(f"{data.questions}: row {mute.id!r} has no `answer` that could be taught")
    return tasks
