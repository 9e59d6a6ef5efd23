"""The figures of episodes, by way of the records of an evaluation file."""

from __future__ import annotations

from collections.abc import Sequence

from sleuth.cite.dialect import ANSWER_ONLY
from sleuth.dialect import DIALECTS, Dialect
from sleuth.evaluation.evaluate import question_record
from sleuth.evaluation.figures import measured_figures
from sleuth.evaluation.intervals import Measured
from sleuth.types import Episode, Score, Task, Trajectory

Finished = tuple[Task, Trajectory, Score]


def episode_figures(finished: Sequence[Finished], *, cites: bool = False) -> dict[str, Measured]:
    return _figures(finished, DIALECTS["reading" if cites else "sleuth"])


def citation_figures(finished: Sequence[Finished]) -> dict[str, Measured]:
    return _figures(finished, ANSWER_ONLY)


def _figures(finished: Sequence[Finished], dialect: Dialect) -> dict[str, Measured]:
    records = [
        question_record(Episode(task=task, sample=0, trajectories=(trajectory,)), score)
        for task, trajectory, score in finished
    ]
    return measured_figures(records, dialect)
