"""The parts of a step of training and their times: those that a run has measured, or those that the plan assumes."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from sleuth.host.hardware import Card
from sleuth.plan.memory import CUDA
from sleuth.plan.phases import Machine, StagePlan, phases_of, problems_of
from sleuth.plan.shapes import shape_of
from sleuth.plan.speed import DISK, RAGGED, Speed, stage_time
from sleuth.recipe import Recipe
from sleuth.runs.chain import step_name
from sleuth.runs.manifest import Manifest
from sleuth.runs.metrics import MetricsFile
from sleuth.runs.rollouts import read_rollouts
from sleuth.types import Episode, SleuthError

Turn = tuple[int, int, bool]
"""Tokens of the context that a turn is the first to read, tokens that it samples, and whether a search follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What steps are made of; times are in seconds.

    `groups` are episodes by their groups; `token(n)` is the time of a token at a server with n turns under way, and
    `prefill` that of a token that it reads; a turn takes one of `slow` times as long, which are those
    of one step while a step lasts. Retriever and judges answer one
    after the other, as fast as they did together: a search takes one of `searches`, each of the `questions` of a group
    one of `judges`. A turn takes one of `client` in the process that sends it, a step one of `updates` on one rank and
    one of `publishes`."""

    groups: Sequence[Sequence[Sequence[Turn]]]
    token: Callable[[int], float]
    updates: Sequence[float]
    publishes: Sequence[float] = (0.0,)
    prefill: float = 0.0
    slow: Sequence[Sequence[float]] = ((1.0,),)
    searches: Sequence[float] = (0.0,)
    judges: Sequence[float] = (0.0,)
    questions: int = 0
    client: Sequence[float] = (0.0,)


RANKS = (1, 2, 4, 8, 16, 32)
"""Of which the fewest that hold a learner are looked for."""
QUANTILES = 64
LEAST_TOKEN = 1e-5
"""Seconds. If the turns of a run took no longer for more tokens, the clock of a simulation could not show any."""
ROLLOUTS = 16
"""Steps whose episodes are drawn from."""


def measured_parts(folder: Path, stage: str, ranks: int) -> tuple[Parts, int, float]:
    """The parts of a run's stage, which it has computed on so many ranks; how many servers it began with, and the
    seconds that a step took. Its first step is left out: in it processes warm up. Raises SleuthError if the run has
    timed no turns."""
    steps = MetricsFile(folder / "metrics.jsonl").rows()  # as rollouts are numbered, over all stages
    rows = {at: row for at, row in enumerate(steps, 1) if row["stage"] == stage and row.get("seconds_turns")}
    files = [folder / "rollouts" / f"{step_name(at)}.parquet" for at in list(rows)[1:]][-ROLLOUTS:]
    played = [group for file in files if file.exists() for group in read_rollouts(file)]
    if not played:
        raise SleuthError(
            f"{folder}: has no step of {stage}, after the first, whose turns were timed: run two steps or more of a "
            "recipe with servers"
        )
    rows = list(rows.values())[1:]
    groups = [[list(_turns(episode)) for episode in group.episodes] for group in played]
    turns = sum(len(episode) for group in groups for episode in group) / len(files)
    start, alone, beside, slow = _fitted([row["seconds_turns"] for row in rows])
    read = fmean(read for group in groups for episode in group for read, _, _ in episode)
    parts = Parts(
        groups=groups,
        token=lambda n: max(alone + beside * n, LEAST_TOKEN),
        prefill=start / read,
        slow=slow,
        searches=_each(rows, "seconds_searches", "searches"),
        judges=_each(rows, "seconds_judges", "judge_asked"),
        questions=round(fmean(row.get("judge_asked") or 0 for row in rows) * len(files) / len(played)),
        client=[
            max(0.0, row.get("seconds_client", 0.0) - (row.get("seconds_searches") or 0.0)) / turns for row in rows
        ],
        updates=[(row["seconds_update"] - row["seconds_publish"]) * ranks for row in rows],
        publishes=[row["seconds_publish"] for row in rows],
    )
    servers = Manifest(folder / "manifest.json").recorded("pools", stage)
    return parts, len(servers), fmean(row["seconds_rollout"] + row["seconds_update"] for row in rows)


def _turns(episode: Episode) -> Iterator[Turn]:
    for trajectory in episode.trajectories:
        read, searches = 0, trajectory.searches
        for segment in trajectory.segments:
            if segment.author != "policy":
                read += len(segment.tokens)
                continue
            yield read, len(segment.tokens), searches > 0
            read, searches = 0, searches - 1


def _each(rows: Sequence[dict[str, Any]], seconds: str, count: str) -> list[float]:
    return [row[seconds] / row[count] for row in rows if row.get(seconds) and row.get(count)] or [0.0]


def _fitted(steps: Sequence[Sequence[Sequence[float]]]) -> tuple[float, float, float, list[list[float]]]:
    """Least squares, none negative, of seconds = start + tokens (alone + beside n), n turns under way; and quantiles of
    how many times as long the turns of each step took, each by the time that it should have taken: the odd seconds of a
    short turn are not those of a long one."""
    seconds, tokens, n = np.array([turn for turns in steps for turn in turns], dtype=float).T
    columns, kept = np.stack([np.ones_like(tokens), tokens, tokens * n], axis=1), [0, 1, 2]
    while (found := np.linalg.lstsq(columns[:, kept], seconds, rcond=None)[0]).min() < 0:
        del kept[int(found.argmin())]
    times, fitted = dict(zip(kept, found.tolist(), strict=True)), np.maximum(columns[:, kept] @ found, 1e-9)
    slow, ends = [], np.cumsum([len(turns) for turns in steps])[:-1]
    for ratios, weights in zip(np.split(seconds / fitted, ends), np.split(fitted, ends), strict=True):
        order, places = ratios.argsort(), (np.arange(QUANTILES) + 0.5) / QUANTILES
        slow.append(ratios[order][np.searchsorted(weights[order].cumsum() / weights.sum(), places)].tolist())
    return times.get(0, 0.0), times.get(1, 0.0), times.get(2, 0.0), slow


def planned_parts(recipe: Recipe, index: int, card: Card, threads: int | None) -> tuple[Parts, int]:
    """The parts of a stage on cards, by the plan's estimate for one rank, with turns as ragged as that assumes; and the
    fewest ranks whose memory holds its learner. Raises SleuthError if that of none does, or the model's shape cannot be
    had."""
    shape, stage, draw = shape_of(recipe.model)[0], recipe.stage[index], random.Random(0)
    machine = Machine(device=CUDA, memory=card.memory, ranks=1, servers=1)
    by_ranks = {count: phases_of(recipe, shape, replace(machine, ranks=count)) for count in RANKS}
    fitting = [ranks for ranks, phases in by_ranks.items() if stage.name not in problems_of(phases, card.memory)]
    if not fitting:
        raise SleuthError(f"{stage.name}: {RANKS[-1]} cards of {card.name} do not hold its learner; name a larger one")
    planned = StagePlan(recipe, index, shape, machine)
    time = stage_time(planned, card, by_ranks[1], threads or os.cpu_count() or 1)
    speed, lengths, played = Speed(card=card, passes=planned.passes, ranks=1), planned.lengths, planned.played
    assert played is not None
    size, count, step = planned.passes.size, lengths.searches + 1, time.step_seconds
    shown = (lengths.response - lengths.sampled) // max(1, lengths.searches)
    searches, calls = (time.searches or 0) / time.steps, sum(time.step_calls.values())

    def episode() -> list[Turn]:
        sampled = [round(draw.uniform(2 - RAGGED, RAGGED) * lengths.sampled / count) for _ in range(count)]
        return [(shown if at else lengths.prompt, tokens, at + 1 < count) for at, tokens in enumerate(sampled)]

    trains = sum(seconds for name, seconds in step.items() if name not in ("rollout", "searches", "judges"))

    @cache
    def token(n: int) -> float:
        return speed.decode_step(n, size * shape.weights + n * lengths.typical * shape.bytes_per_token(size))

    parts = Parts(
        groups=[[episode() for _ in range(played.samples)] for _ in range(64)],
        token=token,
        prefill=speed.frozen_pass(planned.passes, 1),
        updates=[trains],
        publishes=[2 * size * shape.weights / DISK],
        searches=[step.get("searches", 0.0) / searches if searches else 0.0],
        judges=[step.get("judges", 0.0) / calls if calls else 0.0],
        questions=calls // (played.prompts or 1),
    )
    return parts, fitting[0]
