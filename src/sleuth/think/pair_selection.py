"""Chooses the pair of a pool, its best and worst candidate if they differ, and computes the figures of pools."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sleuth.learn.batch import Row
from sleuth.think.preference_rewards import author_of, continuation
from sleuth.training.step_metrics import mean_of
from sleuth.types import Episode, Group

ENOUGH = 0.5
"""The share of a pool's candidates that need a score; with fewer, best and worst would be guesses."""


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
    return suffix_row(group.episodes[choice.best]), suffix_row(group.episodes[choice.worst])


def suffix_row(episode: Episode) -> Row:
    """A candidate as a row: everything after the prefix is trained, whoever wrote it."""
    suffix = len(continuation(episode).tokens)
    tokens = episode.trajectory.tokens
    return Row(tokens=tokens, trained=(*[False] * (len(tokens) - suffix), *[True] * suffix))


def signs_of(group: Group, choice: Choice) -> list[float | None]:
    """1 for the best, -1 for the worst, None for all others: the advantages of a stored pool."""
    ends = {choice.best: 1.0, choice.worst: -1.0}
    return [ends.get(at) for at in range(len(group.episodes))]


def pool_figures(groups: Sequence[Group], choices: Sequence[Choice]) -> dict[str, float | None]:
    """The figures of a step's judged pools in `metrics.jsonl`.

    `reward_mean` is the mean score of what the policy wrote. `chosen_over_original` is how often the best of a pool is
    better than the original (a tie, such as with itself, counts half), `rollouts_over_original` how often one of the
    policy's own is; `chosen_by_policy` and `_source` are who wrote the best. `ties` and `dropped` are
    shares of pools. Parts of scores have their means under their own names.
    """
    own = [score.value for group in groups for at, score in enumerate(group.scores) if _by_policy(group, at)]
    known = [value for value in own if value is not None]
    chosen = [
        author_of(group.episodes[choice.best])
        for group, choice in zip(groups, choices, strict=True)
        if choice.best is not None
    ]
    outcomes = [choice.outcome for choice in choices]
    scores = [score for group in groups for score in group.scores]
    return {
        "reward_mean": mean_of(known),
        "reward_max": max(known, default=None),
        "nonzero_advantage_fraction": _share(outcomes, "pair"),
        "ties": _share(outcomes, "tie"),
        "dropped": _share(outcomes, "dropped"),
        "missing_fraction": mean_of([float(score.value is None) for score in scores]),
        "chosen_over_original": mean_of(_wins_of_chosen(groups, choices)),
        "rollouts_over_original": mean_of(_wins_of_rollouts(groups)),
        **{f"chosen_by_{author}": _share(chosen, author) for author in ("policy", "source")},
        "response_tokens_mean": mean_of(
            [
                float(len(continuation(episode).tokens))
                for group in groups
                for episode in group.episodes
                if author_of(episode) == "policy"
            ]
        ),
        **{
            name: mean_of([score.parts[name] for score in scores if name in score.parts])
            for name in dict.fromkeys(name for score in scores for name in score.parts)
        },
    }


def _wins_of_chosen(groups: Sequence[Group], choices: Sequence[Choice]) -> list[float]:
    found = []
    for group, choice in zip(groups, choices, strict=True):
        original = _original(group)
        if choice.best is not None and original is not None:
            found.append(_beats(group.scores[choice.best].value, original))
    return found


def _wins_of_rollouts(groups: Sequence[Group]) -> list[float]:
    return [
        _beats(score.value, original)
        for group in groups
        if (original := _original(group)) is not None
        for at, score in enumerate(group.scores)
        if score.value is not None and _by_policy(group, at)
    ]


def _original(group: Group) -> float | None:
    """The score of the text's own suffix."""
    return next(
        score.value
        for episode, score in zip(group.episodes, group.scores, strict=True)
        if author_of(episode) == "source"
    )


def _beats(value: float | None, other: float) -> float:
    assert value is not None
    return 0.5 if value == other else float(value > other)


def _by_policy(group: Group, at: int) -> bool:
    return author_of(group.episodes[at]) == "policy"


def _share(values: Sequence[str], name: str) -> float | None:
    return mean_of([float(value == name) for value in values])
