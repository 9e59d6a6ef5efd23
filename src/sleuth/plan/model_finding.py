"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]
"""A `problem` goes wrong in every use of the model, a `warning` in some."""

TEXT_DIALECTS = 'use a dialect of plain text, such as dialect = "sleuth", which needs no tools from the template'


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`Finding(check="stop tokens", level="problem", line="a turn ends with <|im_end|>, which is no stop token",
    fix="add its id to eos_token_id in generation_config.json")`. `fix` is what would be right; empty for `ok`."""

    check: str
    level: Level
    line: str
    fix: str = ""

    def __str__(self) -> str:
        """`warning: history: ...; FIX`."""
        return f"{self.level}: {self.check}: {self.line}{f'; {self.fix}' if self.fix else ''}"


def shown(text: str, limit: int = 60) -> str:
    """A text in quotes on one line, its middle left out where it is longer than `limit` characters."""
    if len(text) > limit:
        text = f"{text[: limit // 2]} ... {text[-limit // 2 :]}"
    return repr(text)


def listed(names: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
