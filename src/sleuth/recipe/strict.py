"""What every table of a recipe has in common: no unknown key, no silent conversion, no change after reading."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Item = TypeVar("Item")

NO_KIND = "none"
"""The tag, in pydantic's complaints, of a table that says no kind where others do."""

FilePath = Annotated[Path, Field(strict=False)]
"""A path as a person types it: relative ones start at the working directory, as on a command line."""

Row = Annotated[tuple[Item, ...], Field(strict=False)]
"""A TOML array, frozen into a tuple."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""A name that can be a file's name: letters, digits, dots, dashes and underscores."""


class StrictModel(BaseModel):
    """A table of a recipe. Each key's meaning is the docstring under it, and its schema's description.

    A check of several keys together raises a ValueError whose message begins with the key that it is about.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
