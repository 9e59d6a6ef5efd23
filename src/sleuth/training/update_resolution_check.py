"""Settings that cannot move the weights, told before the first step and with the arithmetic."""

from __future__ import annotations

from sleuth.factories import optimisation_of
from sleuth.learn.update_resolution import UpdateResolution, path_length, step_distance
from sleuth.recipe.training import TrainingRecipe
from sleuth.runs.alarms import TINY
from sleuth.types import SleuthError


def require_update_resolution(stage: TrainingRecipe, dtype: str, resolution: UpdateResolution) -> None:
    """Raises SleuthError where less than one weight in a hundred could change: in any single step, where the weights
    are stepped as they are stored, and in all steps together, where masters add them up."""
    settings = optimisation_of(stage)
    if not stage.master_weights:
        moved = resolution.share(step_distance(settings))
        if moved < TINY:
            raise SleuthError(
                f"learning_rate = {stage.learning_rate:g} can move {moved:.2%} of the weights: a step is about the "
                f"rate, and with master_weights = false a step that is no larger than half the spacing of {dtype} at a "
                f"weight (|w|/512 to |w|/256) is rounded away; {resolution.distance(TINY):.1g} would move {TINY:.0%}, "
                "and with master_weights = true small steps add up"
            )
    steps = stage.last_step
    length = path_length(settings, steps)
    moved = resolution.share(length)
    if moved < TINY:
        raise SleuthError(
            f"learning_rate = {stage.learning_rate:g} can move {moved:.2%} of the weights: {steps:,} steps move one by "
            f"{length:.1g} at most, and {dtype}, in which they are stored and sampled from, shows that in no more of "
            f"them; it takes {resolution.distance(TINY):.1g} to move {TINY:.0%}: raise learning_rate or steps"
        )
