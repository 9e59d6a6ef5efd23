"""From scored groups to the batch of one update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sleuth.learn.advantages import group_advantages
from sleuth.learn.batch import Batch, collate, trajectory_row
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.training.step_metrics import Advantages, values_of
from sleuth.types import Episode, Group, Score


def advantages_of(group: Group, stage: GrpoRecipe, *, replaced: bool = False) -> list[float | None]:
    """None where an episode is left out of the loss: its group was replaced, its score is missing, or too few siblings
    have one."""
    values = values_of(group)
    if replaced or sum(value is not None for value in values) < stage.min_siblings:
        return [None] * len(values)
    return group_advantages(values, stage.loss.advantage, std_floor=stage.loss.std_floor)


def teaches(groups: Sequence[Group], advantages: Advantages, stage: GrpoRecipe) -> bool:
    """Whether anything pulls on the weights. Where nothing does there is no update, and the schedule waits: a step of
    the optimiser would move the weights all the same, by its momentum."""
    return bool(stage.loss.beta) or any(
        advantage or any(credit.value for credit in score.credits)
        for _, score, advantage in _weighted(groups, advantages)
    )


def training_batch(groups: Sequence[Group], advantages: Advantages, stage: GrpoRecipe) -> Batch:
    """The trajectories that are in the loss, with the weights of all their tokens. Those that an episode links share
    its advantage, and count as one where rows are counted; what its score credits to single tokens is added in the last
    of them."""
    rows = [
        trajectory_row(
            trajectory, advantage, episode_id, credits=score.credits if trajectory is episode.trajectory else ()
        )
        for episode_id, (episode, score, advantage) in enumerate(_weighted(groups, advantages))
        for trajectory in episode.trajectories
    ]
    return collate(rows, normalise=stage.loss.normalise, constant=stage.loss.constant)


def _weighted(groups: Sequence[Group], advantages: Advantages) -> Iterator[tuple[Episode, Score, float]]:
    """The episodes that are in the loss."""
    for group, of_group in zip(groups, advantages, strict=True):
        for episode, score, advantage in zip(group.episodes, group.scores, of_group, strict=True):
            if advantage is not None:
                yield episode, score, advantage
