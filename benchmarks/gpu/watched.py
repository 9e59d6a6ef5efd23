"""The steps of an engine as they pass: what each computes, its seconds, and its kernels."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from benchmarks.gpu.card import synchronise
from benchmarks.gpu.checks import Check
from benchmarks.gpu.profiled import Profiled, profiling
from sleuth.engines.local.slots import SlotTable


@dataclass(slots=True, kw_only=True)
class Step:
    """A step in which `decoding` rows went on and `read` tokens of prompts were read."""

    decoding: int
    read: int
    seconds: float = 0.0
    profiled: Profiled | None = None

    @property
    def mixed(self) -> bool:
        """Whether it read prompts."""
        return self.read > 0


@dataclass(kw_only=True)
class Watch:
    """The steps so far. `apart`: each step begins when the card has nothing left to do, which makes its seconds its
    own; else they are those between two beginnings. At most `most` steps that `asked` is true of are profiled."""

    check: Check
    apart: bool = False
    asked: Callable[[Step], bool] = field(default=lambda step: False)
    most: int = 3
    steps: list[Step] = field(default_factory=list)
    _profiler: ExitStack = field(default_factory=ExitStack)
    _seen: list[Profiled] | None = None
    _current: Step | None = None
    _started: float = 0.0

    def begin(self, decoding: Any, chunks: Sequence[Any]) -> None:
        """A step begins; the one before it has ended."""
        self.end()
        step = Step(decoding=len(decoding), read=sum(chunk.stop - chunk.start for chunk in chunks))
        if self.asked(step) and len(self.profiles) < self.most:
            self._seen = self._profiler.enter_context(profiling(self.check))
        self._current, self._started = step, time.perf_counter()

    def end(self) -> None:
        """The last step has ended."""
        if self._current is None:
            return
        if self.apart:
            synchronise(self.check.device)
        self._current.seconds = time.perf_counter() - self._started
        self._profiler.close()
        if self._seen is not None:
            [self._current.profiled] = self._seen
        self.steps.append(self._current)
        self._current = self._seen = None

    @property
    def profiles(self) -> list[Profiled]:
        """What was seen of the profiled steps."""
        return [step.profiled for step in self.steps if step.profiled is not None]

    def seconds(self, *, mixed: bool, rows: int = 1) -> list[float]:
        """Of the steps that were not profiled, in which at least `rows` decoded."""
        return [
            step.seconds
            for step in self.steps
            if step.mixed == mixed and step.profiled is None and step.decoding >= rows
        ]

    def median(self, *, mixed: bool, rows: int = 1) -> float:
        """The median of `seconds`, or of all such steps if no other was profiled; NaN if there is none."""
        return statistics.median(self.seconds(mixed=mixed, rows=rows) or [float("nan")])


@contextmanager
def watched(check: Check, **options: Any) -> Iterator[Watch]:
    """Within this context the steps of every engine are seen."""
    watch = Watch(check=check, **options)
    schedule = SlotTable.schedule

    def seen(table: SlotTable, *given: Any, **options: Any) -> Any:
        scheduled = schedule(table, *given, **options)
        if scheduled is not None:
            watch.begin(*scheduled)
        return scheduled

    with patch.object(SlotTable, "schedule", seen):
        yield watch
        watch.end()
