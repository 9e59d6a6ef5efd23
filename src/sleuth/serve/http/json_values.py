"""What JSON may hold and Python would trip over, and what is wrong with a body, in one line."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def sound(value: object) -> object:
    """JSON may spell half of a surrogate pair; what people and policies wrote is read all the same."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def whole(value: object) -> object:
    """JSON has one kind of number: 3.0 is 3."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def problem_line(problem: Mapping[str, Any], unnamed: Collection[str | int]) -> str:
    """`queries.3: Input should be a valid string`, of one of pydantic's errors. Where a body has several shapes, their
    names are `unnamed`: a client does not know them."""
    where = ".".join(str(part) for part in problem["loc"] if part not in unnamed)
    return f"{where}: {problem['msg']}" if where else "body: expected a JSON object"
