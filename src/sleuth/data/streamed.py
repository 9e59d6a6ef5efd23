"""`[stage.data]` of kind "python": questions that a function of one's own makes, without end."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from itertools import islice
from typing import Any, ClassVar, Literal

from sleuth.data.layouts import IDS, first_column
from sleuth.data.questions import questions_hash, task_from_row
from sleuth.own.calls import Caller, shown_value
from sleuth.own.functions import load_function, parameters_of, require_arguments
from sleuth.recipe.data import DataFields, Fed
from sleuth.recipe.rewards import FunctionFields
from sleuth.recipe.strict import FunctionName
from sleuth.types import Task

FIRST = 16
"""Rows that are drawn to check a source."""
AT_ONCE = 1_000
"""Rows of one call, whose time is limited."""


class StreamRecipe(FunctionFields, DataFields):
    """Questions that a function of your own yields (docs/how-to/own_code.md)."""

    feeds: ClassVar[Fed] = ("episodes",)
    named: ClassVar[Mapping[str, str]] = {"function": "function", "files": "files"}
    kind: Literal["python"]
    function: FunctionName
    """The function, `MODULE:NAME`: it returns or yields rows, dicts or `Task`s, in the order in which they are played,
    for ever or as many as the steps need. It gets `start`, the number of rows to leave out, if it takes it."""

    one_process: ClassVar[str] = "its rows are drawn by one process"

    def stream(self, taken: int, sha256: str) -> Stream:
        return Stream(self, taken, sha256)

    def tasks(self, tokenizer: Any) -> list[Task]:
        """The first few. Raises SleuthError for a source that has none, or others when it is asked again."""
        stream = Stream(self)
        first = stream.first(FIRST)
        if not first or first != Stream(self).first(FIRST):
            why = "yields other rows when it is called again: seed what it draws" if first else "yields no rows"
            raise stream.call.function.error(why)
        return first


class Stream:
    """The questions of a source from the row after `taken` on; `sha256` is a hash of those taken. Raises UserCodeError
    if the source yields others than those of which `sha256` is the hash, which a source with `start` is trusted not to;
    a later call if it ends too early, yields no rows, raises or takes too long."""

    def __init__(self, recipe: StreamRecipe, taken: int = 0, sha256: str = "") -> None:
        function = load_function(recipe.function, recipe.files)
        skips = "start" in parameters_of(function) and "start" not in recipe.parameters
        self.arguments = {**recipe.parameters, **({"start": taken} if skips else {})}
        require_arguments(function, 0, self.arguments, f"def {function.short_name}()")
        self.call = Caller(function, seconds=recipe.seconds)
        self.taken, self.sha256 = (taken, sha256) if skips else (0, "")
        self._rows: Iterator[Any] | None = None
        self._ahead = deque[Task]()
        while self.taken < taken:
            self.take(min(AT_ONCE, taken - self.taken))
        if self.sha256 != sha256:
            raise function.error(f"yields other rows than the {taken} that the run took: put it back as it was")

    def take(self, count: int) -> list[Task]:
        """The next `count` questions."""
        taken = self.peek(count)
        for task in taken:
            self._ahead.popleft()
            self.sha256 = hashlib.sha256(f"{self.sha256}{questions_hash([task])}".encode()).hexdigest()
        self.taken += count
        return taken

    def peek(self, count: int) -> list[Task]:
        """What `take` would return."""
        found = self.first(count)
        if len(found) < count:
            raise self.call.function.error(f"ended after {self.taken + len(found)} rows, and {count} more are needed")
        return found

    def first(self, count: int) -> list[Task]:
        """As many of the next `count` as there are."""
        if (missing := count - len(self._ahead)) > 0:
            with ThreadPoolExecutor(1) as thread:  # the caller may be a coroutine
                rows = thread.submit(asyncio.run, self.call.run(self._next, missing)).result()
            self._ahead += [self._task(row, self.taken + len(self._ahead) + at) for at, row in enumerate(rows, 1)]
        return [*islice(self._ahead, count)]

    @property
    def items(self) -> list[Task]:
        """A few of its next questions, for what looks at some."""
        return self.first(FIRST)

    def _next(self, count: int) -> list[Any]:
        if self._rows is None:
            self._rows = iter(self.call.function.call(**self.arguments))
        return [copy(row) for row in islice(self._rows, count)]  # a function may fill the same dict again

    def _task(self, row: Any, number: int) -> Task:
        function = self.call.function
        if isinstance(row, Task):
            return row
        if not isinstance(row, Mapping):
            raise function.error(f"yielded {shown_value(row)} as row {number}; expected a dict or a sleuth.types.Task")
        row = row if first_column(row, IDS) else {"id": f"row_{number}", **row}
        return task_from_row(row, f"{function.where}: {function.short_name}: row {number}", answered=False)
