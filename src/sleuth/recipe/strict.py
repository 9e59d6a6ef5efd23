"""What every table of a recipe has in common: no unknown key, no silent conversion, no change after reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator

Item = TypeVar("Item")
Check = Callable[[Any], Iterator[str]]

NO_KIND = "none"
"""The tag, in pydantic's complaints, of a table that says no kind where others do."""

FilePath = Annotated[Path, Field(strict=False)]
"""A path as a person types it: relative ones start at the working directory, as on a command line."""

Row = Annotated[tuple[Item, ...], Field(strict=False)]
"""A TOML array, frozen into a tuple."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""A name that can be a file's name: letters, digits, dots, dashes and underscores."""


VALUES_ONLY = object()
"""The context of a validation that leaves combinations unchecked."""


def combination(check: Check) -> Check:
    """Marks a method of a table that checks several keys together. It yields a message for each problem, which begins
    with the key that the problem is about."""
    check.checks_combination = True  # type: ignore[attr-defined]
    return check


class StrictModel(BaseModel):
    """A table of a recipe. Each key's meaning is the docstring under it, and its schema's description."""

    refused: ClassVar[Mapping[str, str]] = {}
    """Keys that somebody may expect here, with the reason why there is none."""
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @classmethod
    def combinations(cls) -> list[Check]:
        """The checks of several keys together, those of parent classes first."""
        members = (member for parent in reversed(cls.__mro__) for member in vars(parent).values())
        return [member for member in members if hasattr(member, "checks_combination")]

    @model_validator(mode="after")
    def _combinations_fit(self, info: ValidationInfo) -> Self:
        if info.context is not VALUES_ONLY:
            problems = [problem for check in self.combinations() for problem in check(self)]
            if problems:
                raise ValueError("; ".join(problems))
        return self
