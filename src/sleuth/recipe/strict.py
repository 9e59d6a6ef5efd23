"""`StrictModel`, the base of all recipe tables: no unknown keys, no silent conversions, immutable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from sleuth.user_code.functions import resolved

Item = TypeVar("Item")
Check = Callable[[Any], Iterator[str]]

NO_KIND = "none"
"""The tag in pydantic's errors for a table without `kind` in a union of kinds."""

TEXT = "text"
"""The tag for an entry that is text, in a list of texts and tables."""


def _not_empty(path: Any) -> Any:
    if path == "":  # which Path would read as the current folder
        raise PydanticCustomError("empty_path", "should name a file or a folder")
    return path


FilePath = Annotated[Path, Field(strict=False), BeforeValidator(_not_empty)]
"""A path; relative to the working directory, as on a command line."""

Row = Annotated[tuple[Item, ...], Field(strict=False)]
"""A TOML array, frozen into a tuple."""

FunctionName = Annotated[str, AfterValidator(lambda name: resolved(name, [Path()]))]
"""`MODULE:NAME` of a user's function; of a module in the current folder, the path of its file."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""A name that is valid as a file name: letters, digits, dots, dashes and underscores."""

VALUES_ONLY = object()
"""Validation context that skips the checks of key combinations."""


def combination(check: Check) -> Check:
    """Marks a method that checks several keys together. It yields a message for each problem, starting with its key."""
    check.checks_combination = True  # type: ignore[attr-defined]
    return check


class StrictModel(BaseModel):
    """A table of a recipe. The docstring under each key is its description in the schema and on the docs site."""

    refused: ClassVar[Mapping[str, str]] = {}
    """Keys that users may expect but that are not supported, with the reason."""
    named: ClassVar[Mapping[str, str]] = {}
    """Keys that name something outside of the recipe, with its kind in `sleuth.plan.inputs.REQUIRED`."""
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def makes(self) -> tuple[Path, ...]:
        """The files that a stage of this table writes for later ones, which may be absent before."""
        return ()

    @classmethod
    def combinations(cls) -> list[Check]:
        """The methods marked with `combination`, those of parent classes first."""
        members = (member for parent in reversed(cls.__mro__) for member in vars(parent).values())
        return [member for member in members if hasattr(member, "checks_combination")]

    @model_validator(mode="after")
    def _combinations_fit(self, info: ValidationInfo) -> Self:
        if info.context is not VALUES_ONLY:
            problems = [problem for check in self.combinations() for problem in check(self)]
            if problems:
                raise ValueError("; ".join(problems))
        return self
