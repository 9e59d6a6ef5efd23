"""Which rows fit: prompts that leave room for a whole turn in the context, and answers that fit into a turn."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeGuard

from transformers import PreTrainedTokenizerFast

from sleuth.data.questions import named_rows
from sleuth.episodes.setting import Setting
from sleuth.recipe.data import AnsweredRowsRecipe, EvalQuestionsRecipe, QuestionsRecipe
from sleuth.recipe.strict import StrictModel
from sleuth.render import Renderer, encode
from sleuth.rollout import close
from sleuth.types import Env, SleuthError, Task

LONGEST = 100
"""Tasks, those of the most bytes, whose tokens are counted first: counting all would take minutes, and if these fit, so
do the others."""


def require_room(
    data: StrictModel, setting: Setting, tokenizer: PreTrainedTokenizerFast, tasks: Sequence[Task], context: int
) -> None:
    """Raises SleuthError if a prompt leaves no room for a whole turn in `context` tokens, or an answer that is trained
    is longer than a turn: with the number of such rows, and the numbers and ids of the first few. Rows that the data
    skips are no error."""
    if skips(data):
        return
    long = _too_long(data, setting, tokenizer, tasks, context)
    if problems := [_refusal(data, setting, part, rows, len(tasks), context) for part, rows in long.items() if rows]:
        raise SleuthError(*problems)


def fitting_tasks(
    data: StrictModel, setting: Setting, tokenizer: PreTrainedTokenizerFast, tasks: Sequence[Task], context: int
) -> tuple[list[Task], list[Task]]:
    """(kept, skipped): the tasks without those that `data.too_long = "skip"` leaves out; all of them with any other
    data, since `require_room` has refused what does not fit. Both are functions of the data, the prompt, the tokenizer
    and the context, so that a run that continues keeps the same. Raises SleuthError if none is left."""
    if not skips(data):
        return list(tasks), []
    found = _too_long(data, setting, tokenizer, tasks, context, every=True)
    long = {task.id for rows in found.values() for task, _ in rows}
    kept = [task for task in tasks if task.id not in long]
    if not kept:
        raise SleuthError(f'all {len(tasks)} rows are too long for context = {context}, and data.too_long = "skip"')
    return kept, [task for task in tasks if task.id in long]


def skips(data: object) -> TypeGuard[QuestionsRecipe]:
    """Whether rows that are too long are skipped."""
    return isinstance(data, QuestionsRecipe) and data.too_long == "skip"


def skipped_line(data: StrictModel, skipped: Sequence[Task], total: int) -> str:
    """`3 of 400 rows are too long and are skipped: row 7 ('q7'), row 9 ('q9'), row 31 ('q31')`."""
    return f"{len(skipped)} of {total:,} rows are too long and are skipped: {named_rows(_file(data), skipped)}"


def _too_long(
    data: StrictModel,
    setting: Setting,
    tokenizer: PreTrainedTokenizerFast,
    tasks: Sequence[Task],
    context: int,
    *,
    every: bool = False,
) -> dict[str, list[tuple[Task, int]]]:
    """Of the `prompt` and of the `answer`: the rows that do not fit, in their order, and their tokens; with `every`,
    also those that `LONGEST` longer ones hide."""
    renderer = Renderer(tokenizer, setting.dialect.tags)

    async def prompts(asked: Sequence[Task]) -> list[int]:
        return [await _prompt_tokens(setting.env(task), renderer) for task in asked]

    def prompt_tokens(asked: Sequence[Task]) -> list[int]:
        with ThreadPoolExecutor(1) as thread:  # the caller may be a coroutine, as in verifiers
            return thread.submit(asyncio.run, prompts(asked)).result()

    def answer_tokens(answered: Sequence[Task]) -> list[int]:
        return [len(encode(tokenizer, task.reference)) for task in answered]

    size = _prompt_bytes if setting.own_code is None else lambda task: 2**63  # what it makes of a task is not known
    found = {"prompt": _over(tasks, size, prompt_tokens, context - setting.longest_answer, every=every)}
    if isinstance(data, AnsweredRowsRecipe):
        found["answer"] = _over(tasks, _answer_bytes, answer_tokens, setting.dialect.turn_tokens, every=every)
    return found


async def _prompt_tokens(env: Env, renderer: Renderer) -> int:
    try:
        return sum(len(segment.tokens) for segment in renderer.render_all((await env.open()).pieces))
    finally:
        await close(env)


def _over(
    tasks: Sequence[Task],
    size: Callable[[Task], int],
    count: Callable[[Sequence[Task]], list[int]],
    most: int,
    *,
    every: bool,
) -> list[tuple[Task, int]]:
    """The tasks of more than `most` tokens, and their tokens. A token has at least one byte: what a task has more than
    the shortest one, in bytes, is the most that it can have more in tokens, and only such tasks are counted."""
    longest = heapq.nlargest(LONGEST, tasks, key=size)
    if not every and max(count(longest)) <= most:
        return []
    shortest = min(tasks, key=size)
    [least] = count([shortest])
    candidates = [task for task in tasks if least + size(task) > most]
    return [(task, tokens) for task, tokens in zip(candidates, count(candidates), strict=True) if tokens > most]


def _prompt_bytes(task: Task) -> int:
    """How much of a prompt comes from the task; a message of its own holds the tool output too."""
    output = task.evidence.output if task.evidence is not None and not task.prompt else ""
    return len((task.prompt or task.question).encode()) + len(output.encode())


def _answer_bytes(task: Task) -> int:
    return len(task.reference.encode())


def _refusal(
    data: StrictModel, setting: Setting, part: str, rows: Sequence[tuple[Task, int]], total: int, context: int
) -> str:
    most = max(tokens for _, tokens in rows)
    if part == "prompt":
        answer = f"{setting.longest_answer_is}{setting.longest_answer}"
        problem = f"a prompt of {most} tokens and {answer} do not fit in context = {context}"
        remedy = f"raise context, lower {setting.longest_answer_key}"
    else:
        turn = setting.dialect.turn_tokens
        problem = f"an answer of {most} tokens is more than turn_tokens = {turn}, in which it is to be written"
        remedy = "raise env.turn_tokens"
    leave = 'set data.too_long = "skip"' if isinstance(data, QuestionsRecipe) else "leave them out of the file"
    return f"{named_rows(_file(data), [task for task, _ in rows])} of {total:,}: {problem}; {remedy}, or {leave}"


def _file(data: StrictModel) -> Path | None:
    return data.questions if isinstance(data, QuestionsRecipe | EvalQuestionsRecipe) else None
