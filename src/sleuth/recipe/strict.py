"""`StrictModel`, the base of all recipe tables: no unknown keys, no silent conversions, immutable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError
from pydantic_core.core_schema import no_info_after_validator_function, with_info_plain_validator_function

from sleuth import family
from sleuth.own.functions import resolved

Item = TypeVar("Item")
Check = Callable[[Any], Iterator[str]]

TEXT, TABLE = "text", "<table>"
"""The tags in pydantic's errors for the entries of a list of texts and tables."""


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
    """Keys that name something outside of the recipe, with its kind in `sleuth.terminal.recipe_inputs.REQUIRED`."""
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


class KindTable(StrictModel):
    """A table whose `kind` chooses its class among those of the families."""

    if TYPE_CHECKING:
        kind: Any
        """Set by each class."""

    @classmethod
    def own_kind(cls) -> str:
        """The value of `kind` that chooses this class; empty for one without."""
        field = cls.model_fields.get("kind")
        return get_args(field.annotation)[0] if field is not None else ""


class OneOf:
    """The place of a `KindTable` in an annotation, `Annotated[RewardFields, OneOf("rewards")]`: any kind that a family
    has for this part, if its class `fits`."""

    def __init__(self, part: family.Part, fits: Callable[[Any], bool] = lambda table: True) -> None:
        self._part: family.Part = part
        self._fits = fits

    def tables(self) -> list[type[KindTable]]:
        """The classes that may stand here."""
        return [table for kind in family.kinds(self._part) if (table := self._table(kind)) is not None]

    def _table(self, kind: Any) -> type[KindTable] | None:
        if not isinstance(kind, str) or not family.knows(self._part, kind):
            return None
        table = family.table(self._part, kind)
        return table if self._fits(table) else None

    def _validated(self, value: Any, info: ValidationInfo) -> KindTable:
        if isinstance(value, KindTable) and isinstance(value, self._table(value.own_kind()) or ()):
            return value
        if not isinstance(value, Mapping):
            raise PydanticCustomError("model_type", "Input should be a table")
        kind = value.get("kind", "")
        table = self._table(kind) if isinstance(kind, str) and ("kind" not in value or kind) else None
        if table is not None:
            return table.model_validate(value, context=info.context)
        kinds = ", ".join(f"'{one.own_kind()}'" for one in self.tables() if one.own_kind())
        if "kind" not in value:
            raise PydanticCustomError("union_tag_not_found", "Input should have a kind", {"expected_tags": kinds})
        raise PydanticCustomError(
            "union_tag_invalid", "Input should have a known kind", {"tag": kind, "expected_tags": kinds}
        )

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return with_info_plain_validator_function(self._validated)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"oneOf": [handler(table.__pydantic_core_schema__) for table in self.tables()]}


class NameOf:
    """The place of a name in an annotation, `Annotated[str, NameOf("texts")]`: any that a family has for this part."""

    def __init__(self, part: family.Part) -> None:
        self._part: family.Part = part

    def _known(self, name: str) -> str:
        if not family.knows(self._part, name):
            *first, last = map(repr, family.kinds(self._part))
            raise PydanticKnownError("literal_error", {"expected": f"{', '.join(first)} or {last}"})
        return name

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self._known, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": [*family.kinds(self._part)], "type": "string"}


def models_in(field: FieldInfo) -> list[type[StrictModel]]:
    """The classes of the tables that a key may hold."""
    return _models_in(field.rebuild_annotation())


def _models_in(annotation: Any) -> list[type[StrictModel]]:
    if isinstance(annotation, type) and issubclass(annotation, StrictModel):
        return [annotation]
    for place in getattr(annotation, "__metadata__", ()):
        if isinstance(place, OneOf):
            return [*place.tables()]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]
