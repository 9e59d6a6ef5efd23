"""Where the time of a decode step and of an update goes, by torch's profiler."""

from __future__ import annotations

import random
import statistics

from benchmarks.gpu.card import release, timed
from benchmarks.gpu.checks import Check
from benchmarks.gpu.learner import open_policy
from benchmarks.gpu.profiled import Profiled, found_profile, profiling, together
from benchmarks.gpu.sampler import PROFILED, SIBLINGS, Written, continue_all, drawn, open_engine, warm_up
from benchmarks.gpu.watched import watched
from benchmarks.shapes import draw_rows
from sleuth.learn.batch import collate
from sleuth.learn.losses import PolicyLoss

TOP = 14
"""Kernels that are listed."""


def profile(check: Check) -> None:
    """Three decode steps of `even`, and one warm update of `update`."""
    _profile_decode(check)
    release(check.device)
    _profile_update(check)


def _profile_decode(check: Check) -> None:
    draw, scale = random.Random("even"), check.scale
    prompts = [drawn(check, draw, scale.prompt) for _ in range(scale.requests // SIBLINGS)]
    engine = open_engine(check, scale.model(check.device), scale.tokenizer())
    warm_up(engine, scale.longest)
    written = [Written(prompt=prompt) for prompt in prompts for _ in range(SIBLINGS)]
    written, _ = continue_all(engine, written, 1 + 2 * PROFILED)  # captures a graph
    with watched(check) as watch:
        written, _ = continue_all(engine, written, 4 * PROFILED)
    check.found("decode step", 1e3 * watch.median(mixed=False), "ms")
    with watched(check, asked=lambda step: not step.mixed) as profiled:
        continue_all(engine, written, 2 * PROFILED)
    _found(check, "decode step", profiled.profiles, watch.median(mixed=False))
    engine.sleep()


def _profile_update(check: Check) -> None:
    policy, rows = open_policy(check), draw_rows(check.scale.update)

    def update() -> None:
        policy.update(collate(rows), PolicyLoss(), budget=check.scale.budget)

    update()  # compiles
    seconds = statistics.median(timed(check.device, update) for _ in range(2))
    check.found("update", 1e3 * seconds, "ms")
    with profiling(check) as seen:
        update()
    _found(check, "update", seen, seconds)


def _found(check: Check, what: str, seen: list[Profiled], seconds: float) -> None:
    """What was seen of each piece, beside the seconds of one that was not profiled."""
    if not seen:
        check.skip(f"{what}: none was profiled")
        return
    whole = together(seen)
    check.found(f"{what}: kernels, share of its time", whole.busy / len(seen) / seconds)
    found_profile(check, what, whole, times=len(seen), top=TOP)
