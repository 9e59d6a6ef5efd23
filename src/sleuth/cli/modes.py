"""What a verb does under one of its options, and which of the others have a part in it: none is silently ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import typer

from sleuth.types import SleuthError


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """`uses` names the parameters that are read. Of any other option that was typed, `why` is said ("--limit" and
    `why`), or what `instead` has under its name, where {value} is what was typed."""

    uses: frozenset[str]
    why: str
    instead: Mapping[str, str] = field(default_factory=dict)

    def require(self, typed: typer.Context) -> None:
        """Raises SleuthError for the first option that was typed and has no part."""
        for parameter in typed.command.params:
            name = parameter.name or ""
            if parameter.param_type_name != "option" or name in self.uses or not _was_typed(typed, name):
                continue
            value = typed.params[name]
            why = self.instead.get(name, self.why).replace("{value}", str(value))
            raise SleuthError(f"{_spelled(parameter, value)} {why}")


def _was_typed(typed: typer.Context, name: str) -> bool:
    source = typed.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _spelled(parameter: Any, value: object) -> str:
    """`--forced-search`, or `--no-forced-search` where that is what was typed."""
    return parameter.secondary_opts[0] if value is False and parameter.secondary_opts else parameter.opts[0]
