"""What a teacher on a server says about a step's guided episodes."""

from __future__ import annotations

from collections.abc import Sequence

from sleuth.engines.remote.served_teacher import ServedTeacher, Wanted
from sleuth.learn.batch import Advantages, Verdicts, in_loss
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.training.minibatches import guidance_of
from sleuth.types import Group, SleuthError, Trajectory


def ask_teacher(
    teacher: ServedTeacher, groups: Sequence[Group], advantages: Advantages, stage: GrpoRecipe
) -> tuple[Verdicts, float | None]:
    """The verdicts by the tokens of a trajectory, and the share of the guided trajectories that have none (None if none
    is guided). Raises SleuthError if that is more than the stage allows."""
    guided = [
        trajectory
        for episode, score, _ in in_loss(groups, advantages)
        if guidance_of(score, stage=stage)
        for trajectory in episode.trajectories
    ]
    asked = {
        trajectory.tokens: Wanted(tokens=trajectory.tokens, first=first)
        for trajectory in guided
        if (first := _first_written(trajectory)) is not None
    }
    if not asked:
        return {}, None
    given = zip(asked, teacher.verdicts(list(asked.values())), strict=True)
    verdicts = {tokens: verdict for tokens, verdict in given if verdict is not None}
    missing = [trajectory for trajectory in guided if trajectory.tokens in asked.keys() - verdicts.keys()]
    if len(missing) > stage.max_missing_fraction * len(guided):
        raise SleuthError(
            f"{len(missing)} of {len(guided)} verdicts of the teacher at {teacher.server.url} are missing (it "
            f"{teacher.failure}), more than max_missing_fraction = {stage.max_missing_fraction} allows; nothing was "
            "trained: remove the cause and start the run again"
        )
    return verdicts, len(missing) / len(guided)


def _first_written(trajectory: Trajectory) -> int | None:
    """The index of the first token that the policy wrote and something predicts."""
    at = 0
    for segment in trajectory.segments:
        if segment.author == "policy" and at + len(segment.tokens) > max(at, 1):
            return max(at, 1)
        at += len(segment.tokens)
    return None
