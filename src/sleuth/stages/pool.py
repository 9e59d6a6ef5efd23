"""The pools of a step: for each prefix its original suffix, a rewrite where there is one, and the policy's own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from sleuth.rewards.preference.candidate import candidate
from sleuth.types import Engine, Episode, Group, Sampling, Segment, Task


async def pools_of(
    tasks: Sequence[Task],
    engine: Engine,
    *,
    samples: int,
    max_tokens: int,
    temperature: float,
    key: tuple[int, ...],
    stops: tuple[str, ...] = (),
    first_prompt: int = 0,
    rewrites: Mapping[str, Segment] | None = None,
) -> list[Group]:
    """A group for each task: `samples` continuations by the engine, numbered from 0, then the original, then what
    `rewrites` has under the id of the task. `key` is (seed, stage, step).

    The prefix goes to the engine as the tokens that the data has, so that what is sampled continues what is trained.
    """
    own = await continuations(
        tasks,
        engine,
        samples=samples,
        max_tokens=max_tokens,
        temperature=temperature,
        key=key,
        stops=stops,
        first_prompt=first_prompt,
    )
    return [_pool(task, of_task, rewrites or {}) for task, of_task in zip(tasks, own, strict=True)]


async def continuations(
    tasks: Sequence[Task],
    engine: Engine,
    *,
    samples: int,
    max_tokens: int,
    temperature: float,
    key: tuple[int, ...],
    stops: tuple[str, ...] = (),
    first_prompt: int = 0,
) -> list[list[Episode]]:
    """`samples` of each task, by task. The first error ends all."""

    async def one(task: Task, prompt: int, sample: int) -> Episode:
        assert task.continuation is not None
        limits = Sampling(max_tokens=max_tokens, temperature=temperature, stops=stops, key=(*key, prompt, sample, 0))
        done = await engine.complete(task.continuation.prefix.tokens, limits)
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
    assert task.continuation is not None
    others = [task.continuation.suffix, *([rewrites[task.id]] if task.id in rewrites else [])]
    behind = [candidate(task, len(own) + at, segment, segment.author) for at, segment in enumerate(others)]
    return Group(task=task, episodes=(*own, *behind))
