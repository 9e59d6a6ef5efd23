"""A candidate: one way for a prefix to go on, as an episode of its group, whoever wrote it."""

from __future__ import annotations

from sleuth.types import Author, Episode, Segment, Task, Trajectory


def candidate(task: Task, sample: int, written: Segment, stop: str) -> Episode:
    """The prefix of a task with what was written behind it: `stop` as a completion's, `source` for the text's own."""
    trajectory = Trajectory(segments=(task.continued.prefix, written), stop=stop)
    return Episode(task=task, sample=sample, trajectories=(trajectory,))


def written(episode: Episode) -> Segment:
    """What stands behind the prefix."""
    return episode.trajectory.segments[-1]


def author_of(episode: Episode) -> Author:
    """Who wrote it: the policy, the `source` (the text's own suffix), or a `teacher` (a rewrite)."""
    return written(episode).author
