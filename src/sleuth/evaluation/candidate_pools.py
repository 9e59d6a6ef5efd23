"""The pools of a step: for each prefix the policy's own suffixes, the original, and a rewrite where there is one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sleuth.rewards.preference import candidate
from sleuth.types import Engine, Episode, Group, Sampling, Segment, Task


def pools_of(
    tasks: Sequence[Task], own: Sequence[Sequence[Episode]], rewrites: Mapping[str, Segment] | None = None
) -> list[Group]:
    """A group for each task: its `own` continuations, then the original, then what `rewrites` has under its id."""
    return [_pool(task, of_task, rewrites or {}) for task, of_task in zip(tasks, own, strict=True)]


async def continuations(
    tasks: Sequence[Task], engine: Engine, sampling: Sampling, *, samples: int, first_prompt: int = 0
) -> list[list[Episode]]:
    """`samples` by the engine of each task, numbered from 0, by task. The key of `sampling` is (seed, stage, step);
    prompts are numbered from `first_prompt`. The first error ends all.

    The prefix goes to the engine as the tokens that the data has, so that what is sampled continues what is trained.
    """

    async def one(task: Task, prompt: int, sample: int) -> Episode:
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

    async def of_task(task: Task, prompt: int) -> list[Episode]:
        return await asyncio.gather(*(one(task, prompt, sample) for sample in range(samples)))

    return await asyncio.gather(*(of_task(task, first_prompt + number) for number, task in enumerate(tasks)))


def _pool(task: Task, own: Sequence[Episode], rewrites: Mapping[str, Segment]) -> Group:
    others = [task.required_continuation.suffix, *([rewrites[task.id]] if task.id in rewrites else [])]
    behind = [candidate(task, len(own) + at, segment, segment.author) for at, segment in enumerate(others)]
    return Group(task=task, episodes=(*own, *behind))
