"""An object of the user's that lives as long as an episode: how it is made and reset for a task, and what it scores."""

from __future__ import annotations

import copy
import inspect
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sleuth.host.threads import to_stderr
from sleuth.own.calls import Caller, finite_number, plain, shown_value
from sleuth.own.functions import UserCodeError, UserFunction, require_arguments, signature_of
from sleuth.types import Score, Task

SCORES = ("score", "get_reward")
"""Methods that return the score of an episode; the second is TRL's name."""
NOT_TOOLS = ("reset", "done", "close", *SCORES)
ABSENT = object()
NOT_CLOSED = set[str]()
"""Classes whose `close` has failed in this process."""


def tool_names(function: UserFunction) -> list[str]:
    """The public methods of a class, which are its tools, in alphabetical order, as TRL has them. Raises UserCodeError
    if there is none."""
    methods = [name for name, _ in inspect.getmembers(function.call, inspect.isfunction)]
    if names := [name for name in methods if not name.startswith("_") and name not in NOT_TOOLS]:
        return names
    raise function.error(f"has no tool: a tool is a public method other than {', '.join(NOT_TOOLS)}")


def takes_task(function: UserFunction) -> bool:
    """Whether a class or function is called with a task: if its first parameter has no default or is named `task`."""
    parameters = list(signature_of(function).parameters.values())
    first = next((one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)), None)
    several = any(one.kind == one.VAR_POSITIONAL for one in parameters)
    return several if first is None else first.name == "task" or first.default is first.empty


def require_makes(function: UserFunction, parameters: Mapping[str, Any]) -> None:
    """Raises UserCodeError unless the class or function can be called with a task, or without, and the parameters."""
    require_arguments(function, int(takes_task(function)), parameters, f"{function.short_name}(task)")


@dataclass(slots=True)
class OwnObject:
    """An object that `make` makes for one episode, as `made`, by calling the user's class or function."""

    task: Task
    make: Caller
    parameters: Mapping[str, Any] = field(default_factory=dict)
    made: Any = None

    async def create(self) -> None:
        """Calls the class or function, with the task if it takes one."""
        self.made = await self.make(*(self.task,) * takes_task(self.make.function), **self.parameters)

    def has(self, *methods: str) -> bool:
        """Whether it has all of these methods."""
        return all(callable(getattr(self.made, method, None)) for method in methods)

    async def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """What one of its methods returns. Raises UserCodeError with the method's file and line."""
        return await self._caller(method).run(getattr(self.made, method), *arguments, **keywords)

    async def reset(self) -> Any:
        """What its method `reset` returns for the row's columns, of which it gets those that it names, or all."""
        return await self.call("reset", **self._columns(self.made.reset))

    async def is_done(self) -> bool:
        """Whether its attribute or property `done`, if it has one, is True. Raises UserCodeError if it is not False
        either, such as a method."""
        if (done := plain(await self._attribute("done"))) is ABSENT or isinstance(done, bool):
            return done is True
        raise self.error("done", f"has done = {shown_value(done)}; expected True or False, an attribute or a property")

    async def score(self) -> Score | None:
        """What its method `score` or `get_reward`, or its attribute `reward`, says at the end of the episode, without a
        value if that is None, or if it fails, with file and line; None if it has neither."""
        try:
            if method := next(filter(self.has, SCORES), None):
                found, said = await self.call(method), "returned"
            elif (found := await self._attribute(method := "reward")) is ABSENT:
                return None
            else:
                said = "has reward ="
            if (value := finite_number(found)) is None and found is not None:
                expected = "expected a finite number, or None if it is missing"
                raise self.error(method, f"{said} {shown_value(found)}; {expected}")
            return Score(value=value)
        except UserCodeError as error:
            return Score(value=None, note=str(error))

    async def close(self) -> None:
        """Lets it close what it opened, if it has a method for that. The first time that it fails is a line."""
        if not self.has("close"):
            return
        try:
            await self.call("close")
        except UserCodeError as error:
            if (name := self.make.function.name) not in NOT_CLOSED:
                NOT_CLOSED.add(name)
                to_stderr(
                    f"warning: {error}; its episode had ended and counts, and further failures there are not shown"
                )

    def error(self, method: str, message: str) -> UserCodeError:
        """An error at the definition of a method."""
        return self._caller(method).function.error(message)

    async def _attribute(self, name: str) -> Any:
        return await self.make.run(getattr, self.made, name, ABSENT)

    def _caller(self, method: str) -> Caller:
        """Calls under the name and at the line of a method, if the object is of the class that the user names."""
        function, caller = self.make.function, copy.copy(self.make)
        if isinstance(function.call, type) and inspect.isfunction(defined := getattr(function.call, method, None)):
            caller.function = replace(function, name=f"{function.name}.{method}", call=defined)
        return caller

    def _columns(self, reset: Callable[..., Any]) -> dict[str, Any]:
        task, parameters = self.task, inspect.signature(reset).parameters.values()
        columns = {
            "seed": zlib.crc32(task.id.encode()),  # the same for all episodes of a question
            "id": task.id,
            "question": task.question,
            "golden_answers": list(task.golden_answers),
            "prompt": [{"role": "user", "content": task.prompt or task.question}],
            **task.info,
        }
        if any(one.kind == one.VAR_KEYWORD for one in parameters):
            return columns
        columns["task"] = task
        needed = [one.name for one in parameters if one.default is one.empty and one.kind != one.VAR_POSITIONAL]
        if missing := next((name for name in needed if name not in columns), None):
            raise self.error("reset", f"takes {missing}, and the row has {', '.join(columns)}")
        return {one.name: columns[one.name] for one in parameters if one.name in columns}
