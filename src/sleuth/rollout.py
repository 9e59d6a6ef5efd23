"""The rollout loop of training, evaluation and serving: open the environment, complete, reply, append, until done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from inspect import isawaitable
from typing import Any

from sleuth.render import Renderer
from sleuth.types import (
    Action,
    Chunk,
    Completion,
    Engine,
    Env,
    Episode,
    EpisodeKey,
    Group,
    Reward,
    Sampling,
    Score,
    Segment,
    SleuthError,
    Task,
    Trajectory,
)

EPISODES_AT_ONCE = 1024
"""Limit on open episodes. The rest wait, so that engines and retrievers never get ten thousand requests at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryEnd:
    """Yielded by `play` at the end of each trajectory. After the stop reason `rewritten` another trajectory follows."""

    actions: tuple[Action, ...]
    stop: str
    score: Score | None = None


class PromptTooLong(SleuthError):  # noqa: N818
    """The prompt leaves no room for an answer in the context."""


async def play(
    env: Env,
    engine: Engine,
    renderer: Renderer,
    *,
    context: int,
    temperature: float,
    key: tuple[int, ...],
    stream: bool = False,
) -> AsyncGenerator[Chunk | Segment | Action | TrajectoryEnd, None]:
    """Yields one episode: each segment when complete, after a policy segment the action parsed from it, at the end of
    each trajectory a `TrajectoryEnd`. With `stream`, the chunks of a policy segment come before it.

    `key` is (seed, stage, step, prompt, sample); the turn is appended for each completion. Raises `PromptTooLong` if
    the prompt leaves no room within `context` tokens. A later reply that leaves no room ends the episode with the stop
    reason `length` and is dropped, since the policy never read it. A reply that restarts ends the trajectory as
    `rewritten` and starts another. However it ends, an environment that has a method `close` is closed.
    """
    try:
        tokens: list[int] = []
        actions: list[Action] = []
        reply = await env.open()
        turn, limit = 0, context
        while True:
            segments = renderer.render_all(reply.pieces)
            length = sum(len(segment.tokens) for segment in segments)
            if turn == 0 and reply.response_tokens is not None:
                limit = min(context, length + reply.response_tokens)
            room = limit - length - (0 if reply.restarts else len(tokens))
            full = reply.done is None and room <= 0
            if full and turn == 0:
                raise _prompt_too_long(segments, context)
            parsed = [] if reply.action is None else [*reply.earlier, reply.action]
            parsed = [replace(action, same_turn=at > 0) for at, action in enumerate(parsed)]
            unseen = [replace(action, passages=()) for action in parsed]  # where the passages are not shown
            if reply.restarts and not full:
                yield TrajectoryEnd(actions=(*actions, *unseen), stop="rewritten")
                tokens = []
            for action in unseen if full else parsed:
                actions.append(action)
                yield action
            for segment in segments if not full else ():
                tokens.extend(segment.tokens)
                yield segment
            if full or reply.done is not None:
                stop = reply.done or "length"
                yield TrajectoryEnd(actions=tuple(actions), stop=stop, score=await _own_score(env, stop))
                return
            limits = Sampling(
                max_tokens=min(reply.max_tokens, room), temperature=temperature, stops=reply.stops, key=(*key, turn)
            )
            if stream:
                chunks: list[Chunk] = []
                async with aclosing(engine.stream(tokens, limits)) as new_chunks:
                    async for chunk in new_chunks:
                        chunks.append(chunk)
                        yield chunk
                completion = collect_chunks(chunks)
            else:
                completion = await engine.complete(tokens, limits)
            yield _policy_segment(completion)
            if (count := getattr(env, "count_tokens", None)) is not None:  # for the usage that an agent's client reads
                count(len(tokens), len(completion.tokens))
            tokens.extend(completion.tokens)
            reply = await env.reply(completion.text, completion.stop)
            turn += 1
    finally:
        await close(env)


async def close(env: Any) -> None:
    """Ends an environment, if it has a method `close`, asynchronous or not."""
    if isawaitable(closing := env.close() if hasattr(env, "close") else None):
        await closing


async def _own_score(env: Any, stop: str) -> Score | None:
    return await env.score() if stop != "failed" and hasattr(env, "score") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """What the episodes of one phase share: engine, encoder and limits. `key` is (seed, stage, step)."""

    engine: Engine
    renderer: Renderer
    context: int
    temperature: float
    key: tuple[int, ...]

    async def episode(self, env: Env, task: Task, prompt: int, sample: int) -> Episode:
        """The episode that `play` yields. `prompt` and `sample` are part of the sampling key."""
        trajectories: list[Trajectory] = []
        segments: list[Segment] = []
        limits = {"context": self.context, "temperature": self.temperature, "key": (*self.key, prompt, sample)}
        async for part in play(env, self.engine, self.renderer, **limits):
            if isinstance(part, TrajectoryEnd):
                ended = {"actions": part.actions, "stop": part.stop, "score": part.score}
                trajectories.append(Trajectory(segments=tuple(segments), **ended))
                segments = []
            elif isinstance(part, Segment):
                segments.append(part)
        return Episode(task=task, sample=sample, trajectories=tuple(trajectories))

    async def groups(
        self,
        tasks: Sequence[Task],
        make_env: Callable[[Task, EpisodeKey], Env],
        *,
        samples: int,
        first_prompt: int = 0,
        reward: Reward | None = None,
        finished: Callable[[], None] = lambda: None,
    ) -> list[Group]:
        """`samples` episodes of every task, as groups in the order of the tasks; `finished` is called after each
        episode. Prompts are numbered from `first_prompt`; an environment is made for its task and (prompt, sample).
        With a `reward` each group is scored as soon as its last episode has ended, while others are still being played.
        The first error ends all."""
        semaphore = asyncio.Semaphore(EPISODES_AT_ONCE)

        async def episode_of(prompt: int, task: Task, sample: int) -> Episode:
            async with semaphore:
                env = make_env(task, (first_prompt + prompt, sample))
                episode = await self.episode(env, task, first_prompt + prompt, sample)
            finished()
            return episode

        async def group_of(task: Task, jobs: Sequence[asyncio.Task[Episode]]) -> Group:
            group = Group(task=task, episodes=tuple([await job for job in jobs]))
            return await _scored(group, reward) if reward is not None else group

        try:
            async with asyncio.TaskGroup() as task_group:
                running = [
                    [task_group.create_task(episode_of(prompt, task, sample)) for sample in range(samples)]
                    for prompt, task in enumerate(tasks)
                ]
                groups = [
                    task_group.create_task(group_of(task, jobs)) for task, jobs in zip(tasks, running, strict=True)
                ]
        except* Exception as errors:  # TaskGroup wraps what its tasks raise
            raise _first_error(errors) from None
        return [group.result() for group in groups]


async def scored(groups: Sequence[Group], reward: Reward) -> list[Group]:
    """The groups with their scores, all scored concurrently."""
    return await asyncio.gather(*(_scored(group, reward) for group in groups))


async def _scored(group: Group, reward: Reward) -> Group:
    return replace(group, scores=tuple(await reward(group)))


def _first_error(errors: BaseExceptionGroup) -> BaseException:
    error = errors.exceptions[0]
    return _first_error(error) if isinstance(error, BaseExceptionGroup) else error


def _prompt_too_long(segments: Sequence[Segment], context: int) -> PromptTooLong:
    length = sum(len(segment.tokens) for segment in segments)
    end = "".join(segment.text for segment in segments)[-80:]
    return PromptTooLong(
        f"the prompt has {length} tokens and the context holds {context}: no room for an answer after {end!r}"
    )


def collect_chunks(chunks: Sequence[Chunk]) -> Completion:
    """The completion that consists of these chunks. Raises ValueError if the last one has no stop reason."""
    *_, last = chunks
    if last.stop is None:
        raise ValueError("the engine's stream ended without a stop reason")
    logprobs = [logprob for chunk in chunks for logprob in chunk.logprobs or ()]
    return Completion(
        tokens=tuple(token for chunk in chunks for token in chunk.tokens),
        logprobs=tuple(logprobs) if last.logprobs is not None else None,
        text="".join(chunk.text for chunk in chunks),
        stop=last.stop,
        policy_version=last.policy_version,
    )


def _policy_segment(completion: Completion) -> Segment:
    return Segment(
        author="policy",
        tokens=completion.tokens,
        text=completion.text,
        logprobs=completion.logprobs,
        policy_version=completion.policy_version,
        updates=completion.updates,
    )
