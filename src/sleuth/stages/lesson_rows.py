"""What a supervised stage teaches, row by row: text of a generated world, or prompts with answers of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from transformers import PreTrainedTokenizerFast

from sleuth.build import Setting, setting_of
from sleuth.data.questions import questions_hash, select_tasks
from sleuth.recipe import AnsweredRowsRecipe, SupervisedRecipe, WorldTextRecipe
from sleuth.rewards.scorers.strict import STRICT
from sleuth.runs.protocol import ProtocolCard
from sleuth.stages.endless_order import EndlessOrder
from sleuth.stages.stage_run import StageRun
from sleuth.types import Piece, SleuthError, Task
from sleuth.world.text import TextRows


class LessonRows(Protocol):
    """An endless text of rows, each a function of its place; of what a `teacher` wrote in one, all is learned."""

    def row(self, index: int) -> list[Piece]: ...


class AnsweredRows:
    """Tasks as their environment asks them, each with its own answer behind, shuffled anew each time through."""

    def __init__(self, tasks: Sequence[Task], setting: Setting, key: tuple[int, ...]) -> None:
        self.order = EndlessOrder(tasks, seed=key)
        self.setting = setting

    def row(self, index: int) -> list[Piece]:
        """The prompt, and the answer that the row brings."""
        self.order.taken = index
        [task] = self.order.peek(1)
        opening = asyncio.run(self.setting.env(task).open())
        return [*opening.pieces, Piece(text=task.reference, author="teacher")]


def lesson_rows(
    stage: SupervisedRecipe, run: StageRun, tokenizer: PreTrainedTokenizerFast, holds: int
) -> tuple[LessonRows, ProtocolCard | None]:
    """The rows of a stage, and what they are asked under, where they are asked anything, by a model that `holds` so
    many tokens."""
    if isinstance(stage.data, WorldTextRecipe):
        return TextRows(stage.data.people, stage.data.mix, run.key), None
    tasks = answered_tasks(stage.data)
    env, context = run.recipe.answered_in(run.index)
    setting = setting_of(env, tokenizer, tasks)
    protocol = setting.protocol(STRICT.name, context or holds, questions_sha256=questions_hash(tasks))
    return AnsweredRows(tasks, setting, run.key), protocol


def answered_tasks(data: AnsweredRowsRecipe) -> list[Task]:
    """The tasks of a file of rows that bring an answer. Raises SleuthError for one that brings none."""
    tasks = select_tasks(data)
    mute = next((task for task in tasks if not task.reference), None)
    if mute is not None:
        raise SleuthError(f"{data.questions}: row {mute.id!r} has no `answer` that could be taught")
    return tasks
