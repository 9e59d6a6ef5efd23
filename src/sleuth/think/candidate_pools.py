"""Candidate pools: for each prefix the policy's suffixes and the original one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from transformers import PreTrainedTokenizerFast

from sleuth.answers.factory import require_endings
from sleuth.data.documents import read_documents
from sleuth.data.excerpts import excerpts_of
from sleuth.judges.factory import require_available
from sleuth.think.preference_rewards import candidate
from sleuth.think.preference_tables import OnlineDpoRecipe, WinRateRecipe
from sleuth.types import Engine, Episode, Group, Sampling, Segment, SleuthError, Task


def require_pools(
    stage: OnlineDpoRecipe | WinRateRecipe, tokenizer: PreTrainedTokenizerFast | None, positions: int
) -> list[Task]:
    """The texts of a stage. Raises SleuthError if a model with these positions cannot continue them, or they cannot be
    judged. Without a tokenizer only the first document is read, and there are no tasks."""
    window = stage.data.prefix_tokens + stage.data.suffix_tokens
    if window > positions:
        raise SleuthError(
            f"data.prefix_tokens and data.suffix_tokens are {window} together, more than the {positions} positions of "
            "the model"
        )
    for judge in stage.judges():
        require_available(judge)
    if tokenizer is None:
        next(read_documents(stage.data.texts), None)
        return []
    tasks = excerpts_of(stage.data, tokenizer).tasks
    require_endings(stage.judges(), tasks)
    return tasks


def pools_of(tasks: Sequence[Task], own: Sequence[Sequence[Episode]]) -> list[Group]:
    """A group for each task: its `own` continuations, then the original."""
    pools = []
    for task, episodes in zip(tasks, own, strict=True):
        original = candidate(task, len(episodes), task.required_continuation.suffix, "source")
        pools.append(Group(task=task, episodes=(*episodes, original)))
    return pools


async def continuations(
    tasks: Sequence[Task], engine: Engine, sampling: Sampling, *, samples: int, first_prompt: int = 0
) -> list[list[Episode]]:
    """By task, `samples` continuations by the engine. Keys are that of `sampling` (seed, stage, step) with the numbers
    of the prompt, from `first_prompt`, and of the sample. The first error cancels the rest.

    The prefix is sent as the tokens of the data, so that the samples continue exactly what is trained.
    """

    async def continue_once(task: Task, prompt: int, sample: int) -> Episode:
        limits = replace(sampling, key=(*sampling.key, prompt, sample, 0))
        done = await engine.complete(task.required_continuation.prefix.tokens, limits)
        segment = Segment(
            author="policy",
            tokens=done.tokens,
            text=done.text,
            logprobs=done.logprobs,
            policy_version=done.policy_version,
        )
        return candidate(task, sample, segment, done.stop)

    async def continue_task(task: Task, prompt: int) -> list[Episode]:
        return await asyncio.gather(*(continue_once(task, prompt, sample) for sample in range(samples)))

    return await asyncio.gather(*(continue_task(task, first_prompt + number) for number, task in enumerate(tasks)))
