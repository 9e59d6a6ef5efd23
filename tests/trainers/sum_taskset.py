"""A taskset of verifiers with a tool and a reward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from verifiers_tool import CalculatorToolset


class SumData(vf.TaskData):
    result: str


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == self.data.result)


class SumsConfig(vf.TasksetConfig):
    pass


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self) -> Iterator[SumTask]:
        yield SumTask(SumData(prompt="6*7?", result="42", system_prompt="Be brief."), self.config.task)

    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        return [CalculatorToolset(vf.SharedToolsetConfig())]


__all__ = ["Sums"]
