"""Pydantic's complaints about a draft, as one line that a person can act on."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sleuth.recipe.draft import Draft, Key, dotted
from sleuth.recipe.recipe import Recipe
from sleuth.recipe.renamed import new_name
from sleuth.recipe.strict import NO_KIND
from sleuth.recipe.toml_writer import emit_value

_MAPPING_KEY = "[key]"  # pydantic's mark for a complaint about a key of a free table, not about its value
_LONGEST_VALUE = 60  # characters of a wrong value that an error repeats


def describe(error: ValidationError, draft: Draft, model: type[BaseModel] = Recipe) -> str:
    """`demo.toml: stage.0.stpes is no key here; the nearest is stage.0.steps (and 1 more problem)`.

    An unknown key comes first, because a misspelt key also reads as a missing one. `model` is what the draft was to be.
    """
    problems = sorted(filter(_is_real, error.errors()), key=lambda problem: not _is_unknown_key(problem))
    key = _key_of(problems[0], draft.table)
    line = f"{draft.writer_of(key)}: {_sentence(problems[0], key, draft.table, model)}"
    others = len(problems) - 1
    more = f" (and {others} more problem{'s' * (others > 1)})" if others else ""
    return " ".join((line + more).splitlines())


def _sentence(problem: ErrorDetails, key: Key, table: Mapping[str, Any], model: type[BaseModel]) -> str:
    name, context = dotted(key), problem.get("ctx", {})
    match problem["type"]:
        case "extra_forbidden":
            return _unknown(key, _valid_keys(key, table, model))
        case "missing":
            return f"{name} is missing"
        case "union_tag_not_found":
            return f"{name} is missing: it says what this table is"
        case "union_tag_invalid":
            expected = context["expected_tags"].replace("'", '"').removeprefix(f'"{NO_KIND}", ')
            return f"{name} = {_shown(context['tag'])}: should be one of {expected}"
        case "value_error":
            return f"{name} {str(context['error']).partition(' ')[2]}"
        case "too_short":
            return f"{name} is empty: should have at least {context['min_length']} entry"
        case "string_pattern_mismatch":
            return f"{name} = {_shown(problem['input'])}: should be letters, digits, dots, dashes and underscores"
        case "literal_error":
            expected = re.findall(r"'([^']*)'", context["expected"])
            if _is_unknown_key(problem):
                return _unknown(key, expected)
            return f"{name} = {_shown(problem['input'])}: should be {' or '.join(map(emit_value, expected))}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"{name} = {_shown(problem['input'])}: should be a table"
        case "tuple_type" if isinstance(problem["input"], Mapping):
            return f"{name} is one table: should be a list of tables; write [[{re.sub(r'[.][0-9]+', '', name)}]]"
        case "path_type":
            return f"{name} = {_shown(problem['input'])}: should be a path"
        case "tuple_type":
            return f"{name} = {_shown(problem['input'])}: should be a list"
        case _:
            wanted = problem["msg"].removeprefix("Input ")
            return f"{name} = {_shown(problem['input'])}: {wanted}"


def _is_real(problem: ErrorDetails) -> bool:
    """A list whose entries are wrong also reads as too short, because only right entries are counted."""
    return problem["type"] != "too_short" or not problem["input"]


def _is_unknown_key(problem: ErrorDetails) -> bool:
    return problem["type"] == "extra_forbidden" or problem["loc"][-1:] == (_MAPPING_KEY,)


def _unknown(key: Key, valid: Sequence[str]) -> str:
    if (today := new_name(key)) is not None:
        return f"{dotted(key)} is now {dotted((*key[:-1], today))}"
    close = difflib.get_close_matches(str(key[-1]), valid, n=1, cutoff=0.5)
    hint = f"the nearest is {dotted((*key[:-1], close[0]))}" if close else f"valid keys are {', '.join(valid)}"
    return f"{dotted(key)} is no key here; {hint}"


def _shown(value: Any) -> str:
    text = emit_value(value)
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "..."


def _key_of(problem: ErrorDetails, table: Mapping[str, Any]) -> Key:
    """The key that a problem is about, without the tags that pydantic puts in where a `kind` chooses the model."""
    key: Key = ()
    place: Any = table
    for part in problem["loc"]:
        is_tag = isinstance(place, Mapping) and part not in place and place.get("kind", NO_KIND) == part
        if is_tag or part == _MAPPING_KEY:
            continue
        key = (*key, part)
        place = _inside(place, part)
    if problem["type"].startswith("union_tag"):
        return (*key, "kind")
    if problem["type"] == "value_error":  # our own checks; their messages begin with the key that they are about
        first = str(problem.get("ctx", {})["error"]).partition(" ")[0]
        return (*key, *(int(part) if part.isdigit() else part for part in first.split(".")))
    return key


def _inside(place: Any, part: str | int) -> Any:
    if isinstance(place, Mapping):
        return place.get(part)
    return place[part] if isinstance(place, list) and isinstance(part, int) and part < len(place) else None


def _valid_keys(key: Key, table: Mapping[str, Any], model: type[BaseModel]) -> list[str]:
    """The keys of the model that a key was written into."""
    models = [model]
    place: Any = table
    for part in key[:-1]:
        if isinstance(part, str):
            models = _models_in(_chosen(models, place).model_fields[part].annotation)
        place = place[part]
    return list(_chosen(models, place).model_fields)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]


def _chosen(models: Sequence[type[BaseModel]], table: Mapping[str, Any]) -> type[BaseModel]:
    """The model that a table's `kind` chooses; the only one, where there is no choice."""
    if len(models) == 1:
        return models[0]
    if "kind" not in table:
        return next(model for model in models if "kind" not in model.model_fields)
    kinds = {model: model.model_fields["kind"].annotation for model in models if "kind" in model.model_fields}
    return next(model for model, kind in kinds.items() if table["kind"] in get_args(kind))
