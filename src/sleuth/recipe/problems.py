"""A draft becomes its model, or a list of all that is wrong with it: a line a problem, which a person can act on."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from sleuth.recipe.draft import Draft, Key, dotted, emit_value
from sleuth.recipe.renamed import deleted, instead_of_kind, new_name
from sleuth.recipe.strict import TABLE, TEXT, VALUES_ONLY, StrictModel, models_in
from sleuth.types import SleuthError

Model = TypeVar("Model", bound=StrictModel)
Look = Callable[[StrictModel], Iterable[str]]
"""Looks for what a table names: yields a message for each thing that is not there, which begins with its key."""

_MAPPING_KEY = "[key]"  # pydantic's mark for a complaint about a key of a free table, not about its value
_LONGEST_VALUE = 60  # characters of a wrong value that an error repeats
_MOST_TOLD = 100  # wrong values of which an error says what would be right
_WRONG = object()  # in place of a value that cannot be read
WANTED = {
    "string_pattern_mismatch": "should be letters, digits, dots, dashes and underscores",
    "model_type": "should be a table",
    "model_attributes_type": "should be a table",
    "dict_type": "should be a table",
    "path_type": "should be a path",
    "tuple_type": "should be a list",
}
"""What would be right, by the type of pydantic's error, where its own words are not ours."""


def read_table(draft: Draft, model: type[Model], look: Look | None = None) -> Model:
    """The draft as its model; with `look`, what its tables name is looked for too.

    Raises SleuthError with a line for each problem, such as `demo.toml: stage.0.stpes is no key here; the nearest is
    stage.0.steps`. A wrong value hides no problem but those of combinations that it is part of.
    """
    table: StrictModel
    wrong: dict[Key, str] = {}
    try:
        table = model.model_validate(draft.table, context=VALUES_ONLY)
    except ValidationError as error:
        wrong = _wrong_values(error, draft.table, model)
        table = _as_far_as_right(model, draft.table, wrong)
    found = [*wrong.items(), *_unfit(table, complete=not wrong), *(looked_for(table, look) if look else ())]
    found = [one for one in found if one[0][:3] not in draft.copied] or found
    lines = [" ".join(f"{draft.writer_of(key)}: {sentence}".splitlines()) for key, sentence in found]
    if draft.problems or lines:
        raise SleuthError(*draft.problems, *lines)
    assert isinstance(table, model)
    return table


def _wrong_values(error: ValidationError, table: Mapping[str, Any], model: type[StrictModel]) -> dict[Key, str]:
    """What is wrong, by key; unknown keys first. A key that is missing because it is misspelt is reported once."""
    wrong: dict[Key, str] = {}
    meant: set[Key] = set()
    for problem in sorted(filter(_is_real, error.errors()), key=lambda problem: not _is_unknown_key(problem)):
        key = _key_of(problem, table)
        if len(wrong) >= _MOST_TOLD:
            wrong.setdefault(key, f"{dotted(key)} is wrong")
            continue
        if _is_unknown_key(problem):
            valid = _valid_keys(problem, key, table, model)
            today = new_name(key)
            meant.update((*key[:-1], name) for name in ([today] if today else _nearest(key, valid)))
        if problem["type"] != "missing" or key not in meant:
            wrong.setdefault(key, _sentence(problem, key, table, model))
    return wrong


def _unfit(table: StrictModel, *, complete: bool) -> Iterator[tuple[Key, str]]:
    """What does not go together in a table and all tables in it, by key."""
    for key, part in tables_in(table):
        for check in part.combinations():
            try:
                yield from (_with_key(key, message) for message in check(part))
            except AttributeError:  # it is about a value that is wrong
                if complete:
                    raise


def looked_for(table: StrictModel, look: Look, key: Key = ()) -> Iterator[tuple[Key, str]]:
    """What `look` does not find of what is named in a table at `key`, and in all tables in it: keys and sentences.
    Texts that an earlier stage makes are not looked for."""
    made: set[Path] = set()
    for at, part in tables_in(table, key):
        if getattr(part, "texts", None) not in made:
            yield from (_with_key(at, message) for message in look(part))
        made.update(part.makes())


def tables_in(table: StrictModel, key: Key = ()) -> Iterator[tuple[Key, StrictModel]]:
    """A table and all tables in it, with their keys."""
    yield key, table
    for name, value in vars(table).items():
        entries = enumerate(value) if isinstance(value, tuple) else [(None, value)]
        for at, entry in entries:
            if isinstance(entry, StrictModel):
                yield from tables_in(entry, (*key, name) if at is None else (*key, name, at))


def _with_key(key: Key, message: str) -> tuple[Key, str]:
    """The whole key that a table's own message is about, and the message with it."""
    about = (*key, *_key_before(message))
    return about, f"{dotted(about)} {message.partition(' ')[2]}"


def _key_before(message: str) -> Key:
    """The key that a message begins with."""
    return tuple(int(part) if part.isdigit() else part for part in message.partition(" ")[0].split("."))


# -- what is right of a table ------------------------------------------------------------------------------------------


def _as_far_as_right(
    model: type[StrictModel], table: Mapping[str, Any], wrong: Collection[Key], key: Key = ()
) -> StrictModel:
    """`table` as its model. What of it is wrong or missing is no attribute of it."""
    if _is_right(key, wrong):
        return model.model_validate(table, context=VALUES_ONLY)
    values = {
        name: _as_far(field, table[name], wrong, (*key, name))
        for name, field in model.model_fields.items()
        if name in table and (*key, name) not in wrong
    }
    built = model.model_construct(**values)
    for name in model.model_fields:
        if (*key, name) in wrong or values.get(name) is _WRONG:
            vars(built).pop(name, None)
    return built


def _as_far(field: FieldInfo, value: Any, wrong: Collection[Key], key: Key) -> Any:
    """The value of a field, tables in it as far as they are right."""
    if _is_right(key, wrong):
        return TypeAdapter(field.rebuild_annotation()).validate_python(value, context=VALUES_ONLY)
    models = models_in(field)
    if isinstance(value, list):
        entries = [_entry(models, entry, wrong, (*key, at)) for at, entry in enumerate(value)]
        return _WRONG if any(entry is _WRONG for entry in entries) else tuple(entries)
    return _entry(models, value, wrong, key)


def _entry(models: Sequence[type[StrictModel]], table: Any, wrong: Collection[Key], key: Key) -> Any:
    if isinstance(table, str) and _is_right(key, wrong):
        return table
    if not models or not isinstance(table, Mapping) or key in wrong or (*key, "kind") in wrong:
        return _WRONG
    return _as_far_as_right(_chosen(models, table), table, wrong, key)


def _is_right(key: Key, wrong: Collection[Key]) -> bool:
    return not any(at[: len(key)] == key for at in wrong)


# -- sentences ---------------------------------------------------------------------------------------------------------


def _sentence(problem: ErrorDetails, key: Key, table: Mapping[str, Any], model: type[StrictModel]) -> str:
    name, context = dotted(key), problem.get("ctx", {})
    match problem["type"]:
        case "extra_forbidden":
            refused = _model_at(key, table, model).refused.get(str(key[-1]))
            return f"{name} {refused}" if refused else _unknown(key, _valid_keys(problem, key, table, model))
        case "missing":
            return f"{name} is missing"
        case "union_tag_not_found":
            return f"{name} is missing: it says what this table is, one of {context['expected_tags']}"
        case "union_tag_invalid":
            if (instead := instead_of_kind(key, context["tag"])) is not None:
                return f"{name} = {_shown(context['tag'])} was deleted: {instead}"
            expected = context["expected_tags"].replace("'", '"')
            own = f'; for a function of your own, set kind = "python" and function = {_shown(context["tag"])}'
            hint = own if ":" in str(context["tag"]) and '"python"' in expected else ""
            one_of = "one of " if "," in expected else ""
            return f"{name} = {_shown(context['tag'])}: should be {one_of}{expected}{hint}"
        case "value_error":
            return f"{name} {str(context['error']).partition(' ')[2]}"
        case "too_short":
            return f"{name} is empty: should have at least {context['min_length']} entry"
        case "literal_error":
            if _is_unknown_key(problem):
                return _unknown(key, _valid_keys(problem, key, table, model))
            if (instead := instead_of_kind((*key, "kind"), problem["input"])) is not None:
                return f"{name} = {_shown(problem['input'])} was deleted: {instead}"
            expected = " or ".join(map(emit_value, _expected(problem)))
            return f"{name} = {_shown(problem['input'])}: should be {expected}"
        case "tuple_type" if isinstance(problem["input"], Mapping):
            return f"{name} is one table: should be a list of tables; write [[{re.sub(r'[.][0-9]+', '', name)}]]"
        case "tuple_type" if str(problem["input"])[:1] == "[":
            return f"{name} = {_shown(problem['input'])}: should be a list; a shell needs quotes: '{name}=[\"...\"]'"
        case _:
            wanted = WANTED.get(problem["type"], problem["msg"].removeprefix("Input "))
            return f"{name} = {_shown(problem['input'])}: {wanted}"


def _is_real(problem: ErrorDetails) -> bool:
    """A list whose entries are wrong also reads as too short, because only right entries are counted."""
    return problem["type"] != "too_short" or not problem["input"]


def _is_unknown_key(problem: ErrorDetails) -> bool:
    return problem["type"] == "extra_forbidden" or problem["loc"][-1:] == (_MAPPING_KEY,)


def _unknown(key: Key, valid: Sequence[str]) -> str:
    if (today := new_name(key)) is not None:
        return f"{dotted(key)} is now {dotted((*key[:-1], today))}"
    if (gone := deleted(key)) is not None:
        return f"{dotted(key)} was deleted: {gone.instead}"
    near = _nearest(key, valid)
    hint = f"the nearest is {dotted((*key[:-1], near[0]))}" if near else f"valid keys are {', '.join(valid)}"
    return f"{dotted(key)} is no key here; {hint}"


def _nearest(key: Key, valid: Sequence[str]) -> list[str]:
    """The valid key that was meant; none where none is near."""
    return difflib.get_close_matches(str(key[-1]), valid, n=1, cutoff=0.5)


def _shown(value: Any) -> str:
    text = emit_value(value)
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "..."


def _key_of(problem: ErrorDetails, table: Mapping[str, Any]) -> Key:
    """The key that a problem is about, without the tags that pydantic puts in where the type of a list's entry chooses
    the model."""
    key: Key = ()
    place: Any = table
    for part in problem["loc"]:
        is_tag = part == TABLE and part not in place if isinstance(place, Mapping) else part == TEXT
        if is_tag or part == _MAPPING_KEY:
            continue
        key = (*key, part)
        place = _inside(place, part)
    if problem["type"].startswith("union_tag"):
        return (*key, "kind")
    if problem["type"] == "value_error":  # our own checks; their messages begin with the key that they are about
        return (*key, *_key_before(str(problem.get("ctx", {})["error"])))
    return key


def _inside(place: Any, part: str | int) -> Any:
    if isinstance(place, Mapping):
        return place.get(part)
    return place[part] if isinstance(place, list) and isinstance(part, int) and part < len(place) else None


def _valid_keys(problem: ErrorDetails, key: Key, table: Mapping[str, Any], model: type[StrictModel]) -> list[str]:
    """The keys that could stand where an unknown one does."""
    if problem["type"] == "literal_error":  # in a free table
        return _expected(problem)
    return list(_model_at(key, table, model).model_fields)


def _expected(problem: ErrorDetails) -> list[str]:
    return re.findall(r"'([^']*)'", problem.get("ctx", {})["expected"])


def _model_at(key: Key, table: Mapping[str, Any], model: type[StrictModel]) -> type[StrictModel]:
    """The model of the table that a key was written into."""
    models = [model]
    place: Any = table
    for part in key[:-1]:
        if isinstance(part, str):
            models = models_in(_chosen(models, place).model_fields[part])
        place = place[part]
    return _chosen(models, place)


def _chosen(models: Sequence[type[StrictModel]], table: Mapping[str, Any]) -> type[StrictModel]:
    """The model that a table's `kind` chooses; the only one, where there is no choice."""
    if len(models) == 1:
        return models[0]
    if "kind" not in table:
        return next(model for model in models if "kind" not in model.model_fields)
    kinds = {model: model.model_fields["kind"].annotation for model in models if "kind" in model.model_fields}
    return next(model for model, kind in kinds.items() if table["kind"] in get_args(kind))
