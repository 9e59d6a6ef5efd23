"""The stream of rows of "The second idea" in verifiers: a taskset that reads its file line by line."""

import json
from collections.abc import Iterator
from pathlib import Path

import verifiers.v1 as vf


class LineConfig(vf.TasksetConfig):
    file: Path


class LineTaskset(vf.Taskset[vf.Task, LineConfig]):
    def load(self) -> Iterator[vf.Task]:
        for row in map(json.loads, self.config.file.open()):
            yield vf.Task(vf.TaskData(prompt=row["question"]), self.config.task)


__all__ = ["LineTaskset"]
