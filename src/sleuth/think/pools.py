"""Pools: for each prefix the policy's continuations and the original one; the pair that is trained of them, the best
and the worst if they differ; and the figures of pools."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from transformers import PreTrainedTokenizerFast

from sleuth.answers.factory import require_endings
from sleuth.data.documents import read_documents
from sleuth.data.excerpts import excerpts_of
from sleuth.evaluation.counterfactual import suffix_row
from sleuth.judges.factory import require_available
from sleuth.learn.batch import Row
from sleuth.think.comparisons import candidate, continuation
from sleuth.think.preference_tables import OnlineDpoRecipe, WinRateRecipe
from sleuth.training.step_metrics import mean_of
from sleuth.types import Engine, Episode, Group, Sampling, Segment, SleuthError, Task

ENOUGH = 0.5
"""The share of a pool's candidates that need a score; with fewer, best and worst would be guesses."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The outcome of a pool: a `pair` with the indices of its `best` and `worst`, a `tie`, or `dropped` for missing
    verdicts.

    `Choice(outcome="pair", best=3, worst=0)`.
    """

    outcome: Literal["pair", "tie", "dropped"]
    best: int | None = None
    worst: int | None = None


def choose(group: Group, key: tuple[int, ...]) -> Choice:
    """The best and the worst of a scored pool. Among equal ones, one is drawn by `key`, so that the order of the pool
    does not decide."""
    scores = {at: score.value for at, score in enumerate(group.scores) if score.value is not None}
    if len(scores) < max(2, ENOUGH * len(group.scores)):
        return Choice(outcome="dropped")
    top, bottom = max(scores.values()), min(scores.values())
    if top == bottom:
        return Choice(outcome="tie")
    rng = random.Random(f"choice {key} {group.task.id}")
    best, worst = (rng.choice([at for at, value in scores.items() if value == end]) for end in (top, bottom))
    return Choice(outcome="pair", best=best, worst=worst)


def pair_of(group: Group, choice: Choice) -> tuple[Row, Row] | None:
    """The rows of best and worst; None if the pool has no pair."""
    if choice.best is None or choice.worst is None:
        return None
    return candidate_row(group.episodes[choice.best]), candidate_row(group.episodes[choice.worst])


def candidate_row(episode: Episode) -> Row:
    """A candidate as a row: everything after the prefix is trained, whoever wrote it."""
    suffix = continuation(episode).tokens
    tokens = episode.trajectory.tokens
    return suffix_row(tokens[: len(tokens) - len(suffix)], suffix)


def signs_of(group: Group, choice: Choice) -> list[float | None]:
    """1 for the best, -1 for the worst, None for all others: the advantages of a stored pool."""
    ends = {choice.best: 1.0, choice.worst: -1.0}
    return [ends.get(at) for at in range(len(group.episodes))]


def pool_figures(groups: Sequence[Group], choices: Sequence[Choice]) -> dict[str, float | None]:
    """The figures of a step's judged pools in `metrics.jsonl`.

    `reward_mean` is the mean score of what the policy wrote. `chosen_over_original` is how often the best of a pool is
    better than the original (a tie, such as with itself, counts half), `rollouts_over_original` how often one of the
    policy's own is; `chosen_by_policy` and `_source` are who wrote the best. `ties` and `dropped` are shares of pools.
    Parts of scores have their means under their own names.
    """
    known: list[float] = []
    rollouts_win: list[float] = []
    chosen_win: list[float] = []
    chosen_by: list[str] = []
    for group, choice in zip(groups, choices, strict=True):
        original = group.scores[-1].value
        own = [score.value for score in group.scores[:-1] if score.value is not None]
        known += own
        best = None if choice.best is None else group.scores[choice.best].value
        if choice.best is not None:
            chosen_by.append(continuation(group.episodes[choice.best]).author)
        if original is not None:
            rollouts_win += [_beats(value, original) for value in own]
            chosen_win += [] if best is None else [_beats(best, original)]
    outcomes = [choice.outcome for choice in choices]
    scores = [score for group in groups for score in group.scores]
    lengths = [float(len(continuation(episode).tokens)) for group in groups for episode in group.episodes[:-1]]
    return {
        "reward_mean": mean_of(known),
        "reward_max": max(known, default=None),
        "nonzero_advantage_fraction": _share(outcomes, "pair"),
        "ties": _share(outcomes, "tie"),
        "dropped": _share(outcomes, "dropped"),
        "missing_fraction": mean_of([float(score.value is None) for score in scores]),
        "chosen_over_original": mean_of(chosen_win),
        "rollouts_over_original": mean_of(rollouts_win),
        **{f"chosen_by_{author}": _share(chosen_by, author) for author in ("policy", "source")},
        "response_tokens_mean": mean_of(lengths),
        **{
            name: mean_of([score.parts[name] for score in scores if name in score.parts])
            for name in dict.fromkeys(name for score in scores for name in score.parts)
        },
    }


def _beats(value: float, other: float) -> float:
    return 0.5 if value == other else float(value > other)


def _share(values: Sequence[str], name: str) -> float | None:
    return mean_of([float(value == name) for value in values])
