"""Numbers of a stage that change with its steps: a table of steps, or a function of the user."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_wrap_validator_function, plain_serializer_function_ser_schema

from sleuth.own.calls import Caller, finite_number, shown_value
from sleuth.own.functions import load_function, require_arguments, resolved
from sleuth.recipe.strict import StrictModel

Stage = TypeVar("Stage", bound=StrictModel)
KEYS = ("learning_rate", "loss.beta", "sampling.temperature")
"""Those of a `grpo` stage that may have a schedule."""
SECONDS = 60.0
"""Timeout of a user's function."""


class Scheduled:
    """The place of such a number in an annotation, `Annotated[PositiveFloat, Scheduled()]`. It may also be a table of
    numbers by the steps that were made, `{ 0 = 0.1, 100 = 0.02 }`, linear in between, or the `MODULE:NAME` of a
    function."""

    def _validated(self, value: Any, number: Callable[[Any], Any]) -> Any:
        if isinstance(value, str) and ":" in value:
            return resolved(value, [Path()])
        if not isinstance(value, Mapping):
            return number(value)
        if not value or not all(str(step).isdecimal() for step in value):
            raise PydanticCustomError("schedule", "should be a number, a table of steps, or MODULE:NAME")
        return {str(int(step)): number(value[step]) for step in sorted(value, key=int)}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        as_it_is = plain_serializer_function_ser_schema(lambda value: value)
        return no_info_wrap_validator_function(self._validated, handler(source), serialization=as_it_is)


def scheduled(stage: Any) -> dict[str, Any]:
    """The tables and functions of a stage by their keys, such as `loss.beta`."""
    values = {key: reduce(getattr, key.split("."), stage) for key in KEYS}
    return {key: value for key, value in values.items() if not isinstance(value, int | float)}


def peak(value: Any) -> float | None:
    """The largest number of a schedule; None of a function."""
    return max(value.values()) if isinstance(value, Mapping) else None if isinstance(value, str) else value


def with_numbers(stage: Stage, numbers: Mapping[str, float]) -> Stage:
    """The stage with numbers in the place of its schedules."""
    for key, number in numbers.items():
        table, _, name = key.rpartition(".")
        update = {table: getattr(stage, table).model_copy(update={name: number})} if table else {name: number}
        stage = stage.model_copy(update=update)
    return stage


class Schedules:
    """What the schedules of a stage say. Raises UserCodeError for a function that cannot be called with the number of
    steps made and the figures of the last one."""

    def __init__(self, stage: Any) -> None:
        self.by_key = scheduled(stage)
        self.calls: dict[str, Caller] = {}
        for key, name in self.by_key.items():
            if isinstance(name, str):
                self.calls[key] = Caller(load_function(name), seconds=SECONDS)
                function = self.calls[key].function
                require_arguments(function, 2, {}, f"def {function.short_name}(step, metrics)")

    def numbers(self, made: int, last: Mapping[str, Any]) -> dict[str, float]:
        """The numbers in force after so many steps; `last` are the figures of the last one as `metrics.jsonl` has them,
        empty before the first. Raises UserCodeError where a function returns no number that the key may have."""
        tables = {key: table for key, table in self.by_key.items() if key not in self.calls}
        return {key: interpolated(table, made) for key, table in tables.items()} | {
            key: self._called(key, call, made, last) for key, call in self.calls.items()
        }

    def _called(self, key: str, call: Caller, made: int, last: Mapping[str, Any]) -> float:
        found = asyncio.run(call(made, dict(last)))
        number, zero = finite_number(found), key == "loss.beta"
        if number is None or number < 0 or (number == 0 and not zero):
            wanted = "of 0 or more" if zero else "above 0"
            raise call.function.error(f"returned {shown_value(found)} as {key}; expected a number {wanted}")
        return number

    def require(self) -> None:
        """Asks each function twice for its first number. Raises UserCodeError if it fails or draws random numbers."""
        if self.numbers(0, {}) != (again := self.numbers(0, {})):
            function = self.calls[next(iter(self.calls))].function
            raise function.error(f"returned another number when asked again, {again}: a resumed run would differ")


def interpolated(table: Mapping[str, float], made: int) -> float:
    """The number after so many steps: linear between two of the table, constant before the first and after the last."""
    steps, numbers = [int(step) for step in table], [*table.values()]
    at = bisect_right(steps, made)
    if at in (0, len(steps)):
        return numbers[max(at - 1, 0)]
    share = (made - steps[at - 1]) / (steps[at] - steps[at - 1])
    return numbers[at - 1] + share * (numbers[at] - numbers[at - 1])
