"""A recipe file, its parents and the overrides of the command line become one `Recipe`.

Three layers, each over the one before:

1. `extends = "parent.toml"` (relative to the file that says so; a parent may extend another). Tables merge key by key,
   any other value replaces the parent's; a child's `[[stage]]` list replaces the parent's list as a whole, and
   `without = ["accepted", "grpo.engine"]` leaves out stages of the parent's list, or keys of one, by their names. An
   empty table empties the parent's: `template_flags = {}`.
2. `[set]` in a file changes single values of what the file extends: `"stage.0.steps" = 50`.
3. `--set grpo.steps=50` on the command line.

A single value names its stage, `grpo.steps`, or counts it, `stage.1.steps`; `stage.-1` is the last stage. In both, a
table changes the keys that it has and keeps the others; one that names its `kind` is a whole table. Paths of data
in a recipe are relative to the working directory, not to the file. A function of the user, `my_rewards:brevity`, is
looked for beside the file first, and becomes `folder/my_rewards.py:brevity`. Recipes and tiny models that ship with the
package are found by name where no such file is here: `load_recipe("demo")`, `extends = "tiny/refiner"`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from sleuth.own.families import use
from sleuth.own.functions import resolved
from sleuth.recipe.draft import Draft, by_steps, dotted, emit_value, read_toml
from sleuth.recipe.judges import JudgeFields, JudgeTable, TeacherRecipe
from sleuth.recipe.problems import Look, read_table
from sleuth.recipe.recipe import Recipe, ResolvedFrom
from sleuth.recipe.renamed import renamed_keys
from sleuth.recipe.rewards import MeasuredFields, RewardTable
from sleuth.recipe.shipped import ShippedRecipe, described, find_model, find_recipe, recipe_names, shipped_recipe
from sleuth.recipe.strict import Row, StrictModel
from sleuth.types import SleuthError

Part = TypeVar("Part", bound=StrictModel)
FUNCTION_KEYS = ("function", "tools", "families", "advantage", "hooks", "learning_rate", "beta", "temperature")
"""Keys whose values name functions of the user."""


INSTEAD = {"launch": ("urls",), "urls": ("launch", "command", "cards", "memory", "port", "arguments")}
"""What a changed key takes the place of: the servers of a table run already, or the run starts them."""


def load_recipe(path: str | os.PathLike[str], overrides: Sequence[str] = (), look: Look | None = None) -> Recipe:
    """Read, resolve and check a recipe; `overrides` are `key=value` texts. With `look`, what it names is looked for.
    Raises a `SleuthError` with a line for each problem."""
    draft, history = read_draft(path, overrides)
    if "resolved_from" in draft.table:
        raise SleuthError(f"{draft.writer_of(('resolved_from',))}: resolved_from is not for setting; leave it out")
    if "arm" in draft.table:
        raise SleuthError(
            f"{path}: has arms, which are several runs: train them with `sleuth sweep {quote(str(path))}`"
        )
    draft.table = resolve_functions(draft.table, history["files"])
    draft.table["resolved_from"] = history
    _use_named(draft)
    _copy_rewards(draft)
    return read_table(draft, Recipe, look)


def _copy_rewards(draft: Draft) -> None:
    """Writes the rewards of another stage where a stage names it, `reward = "grpo"`."""
    listed = draft.table.get("stage")
    stages = [one if isinstance(one, dict) else {} for one in listed] if isinstance(listed, list) else []
    paid = {one.get("name", one.get("kind")): one["reward"] for one in stages if isinstance(one.get("reward"), list)}
    for at, stage in enumerate(stages):
        if isinstance(name := stage.get("reward"), str):
            key = "stage", at, "reward"
            if name not in paid:
                names = ", ".join(map(str, paid)) or 'none; rewards themselves are a list, [{ kind = "answer" }]'
                why = f"{dotted(key)} = {emit_value(name)}: no stage of that name has rewards; there are {names}"
                draft.problems.append(f"{draft.writer_of(key)}: {why}")
            stage["reward"] = paid.get(name, [])
            draft.copied.append(key)


def _use_named(draft: Draft) -> None:
    """Adds the families that the recipe names, so that its tables can be read."""
    names = draft.table.get("families", [])
    for at, name in enumerate(names if isinstance(names, list) else []):
        try:
            use(str(name))
        except SleuthError as error:
            raise SleuthError(
                f"{draft.writer_of(('families',))}: families.{at} = {emit_value(name)}: {error}"
            ) from None


def list_recipes() -> list[ShippedRecipe]:
    """The recipes that ship with the package, the tiny ones last."""
    return [described(name, read_draft(name)[0].table) for name in recipe_names()]


def resolve_functions(table: Any, files: Sequence[str]) -> Any:
    """The tables with `folder/my_rewards.py:brevity` for each `my_rewards:brevity` that is a file beside one of the
    `files`, the last first, or in the current folder. Names of installed packages stay as they are."""
    folders = [*(Path(file).parent for file in reversed(files)), Path()]

    def resolve(value: Any, key: str) -> Any:
        if isinstance(value, dict) and key != "parameters":
            return {name: resolve(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [resolve(inner, key) for inner in value]
        return resolved(value, folders) if isinstance(value, str) and key in FUNCTION_KEYS else value

    return resolve(table, "")


def read_draft(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> tuple[Draft, dict[str, list[str]]]:
    """The tables of a file, its parents' and the overrides laid over each other, unchecked; and from which files and
    overrides they came. Raises a one-line `SleuthError` where a file cannot be read."""
    draft = Draft(str(path))
    files: list[str] = []
    changes: list[str] = []
    for file, table in _family(Path(path)):
        _lay_file(draft, file, table, files, changes)
    for text in overrides:
        try:
            key, value = _parse_override(text)
        except SleuthError as error:  # reported with whatever else is wrong
            draft.problems.append(str(error))
            continue
        _lay(draft, key, value, f"--set {text}", changes)
    if isinstance(model := draft.table.get("model"), str):
        draft.table["model"] = find_model(model)
    return draft, {"files": files, "set": changes}


def _lay_file(draft: Draft, file: Path, table: dict[str, Any], files: list[str], changes: list[str]) -> None:
    changed = table.pop("set", {})
    if not isinstance(changed, dict):
        raise SleuthError(f'{file}: set = {changed!r}: should be a table, such as [set] with "stage.0.steps" = 50')
    history = table.pop("resolved_from", None)
    if history is None:
        files.append(str(file))
    else:  # a resolved copy: it continues the history that it holds
        try:
            past = ResolvedFrom.model_validate(history)
        except ValidationError:
            raise SleuthError(
                f"{file}: resolved_from: is written by sleuth into resolved copies; leave it out"
            ) from None
        files.extend(past.files)
        changes.extend(past.set)
        table = renamed_keys(table)
    without = table.pop("without", [])
    draft.merge(table, str(file))
    _leave_out(draft, file, without)
    for key, value in changed.items():
        _lay(draft, key, value, f"{file}: [set]", changes)


def _leave_out(draft: Draft, file: Path, names: Any) -> None:
    """Removes the inherited stages of these names; of `STAGE.KEY` that key of the stage, which may be one of a table in
    it: `grpo.env.template_flags.enable_thinking`."""
    if not isinstance(names, list):
        raise SleuthError(f'{file}: without = {names!r}: should be a list of stages, such as without = ["accepted"]')
    for name in names:
        wanted, *keys = str(name).split(".")
        stages = draft.table.get("stage", [])
        found = [at for at, stage in enumerate(stages) if stage.get("name", stage.get("kind")) == wanted]
        if len(found) != 1:
            raise SleuthError(f"{file}: without: {len(found)} stages are named {wanted!r}; name one of them")
        at: list[str] = ["stage", str(found[0])]
        for key in keys:
            table = draft.get(at)
            if not isinstance(table, dict) or key not in table:
                has = f"has {', '.join(table)}" if isinstance(table, dict) else "is no table"
                where = ".".join([repr(wanted), *at[2:]])
                raise SleuthError(f"{file}: without: stage {where} has no {key!r}; it {has}")
            at.append(key)
        if keys:
            shorter = {key: value for key, value in draft.get(at[:-1]).items() if key != at[-1]}
            draft.set(at[:-1], shorter, str(file))
        else:
            draft.set(["stage"], [stage for place, stage in enumerate(stages) if place != found[0]], str(file))


def _lay(draft: Draft, key: str, value: Any, writer: str, changes: list[str]) -> None:
    """Sets a value, or those of a table one by one, and records each change with the stage's number in place of its
    name."""
    try:
        key = _numbered(draft, key, writer)
    except SleuthError as error:  # reported with whatever else is wrong
        draft.problems.append(str(error))
        return
    if isinstance(value, dict) and "kind" not in value and not by_steps(value):
        for name, inner in value.items():
            _lay(draft, f"{key}.{name}", inner, writer, changes)
        if value:
            return
    *table, last = key.split(".")
    at = tuple(int(part) if part.isdigit() else part for part in table)
    for name in INSTEAD.get(last, ()):  # unless both are of this writer, who is told so
        if isinstance(beside := draft.get(table), dict) and draft.writer_of((*at, name)) != writer:
            beside.pop(name, None)
    draft.set([*table, last], value, writer)
    changes.append(f"{key}={emit_value(value)}")


def _numbered(draft: Draft, key: str, writer: str) -> str:
    """`stage.1.steps` for `grpo.steps`; any other key as it is. Raises SleuthError where no stage or several have
    the name."""
    stages = draft.table.get("stage")
    first, dot, _ = key.partition(".")
    if not dot or first in Recipe.model_fields or not isinstance(stages, list):
        return key
    tables = [stage if isinstance(stage, dict) else {} for stage in stages]
    names = [str(table.get("name", table.get("kind"))) for table in tables]  # a stage is named by its kind by default
    name = max((name for name in names if key.startswith(f"{name}.")), key=len, default=None)
    if name is None:
        raise SleuthError(f"{writer}: no stage is named {first}; there are {', '.join(names)}")
    if names.count(name) > 1:
        numbers = " or ".join(f"stage.{at}" for at, other in enumerate(names) if other == name)
        raise SleuthError(f"{writer}: {names.count(name)} stages are named {name}; write {numbers} for it")
    return f"stage.{names.index(name)}{key.removeprefix(name)}"


def _family(path: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The file and the files it extends, the outermost parent first, each with its table."""
    family: list[tuple[Path, dict[str, Any]]] = []
    seen: list[Path] = []
    path, child = find_recipe(path), None
    while True:
        if path.resolve() in seen:
            raise SleuthError(f"{child}: extends = {str(path)!r} closes a circle; a recipe cannot extend itself")
        seen.append(path.resolve())
        table = read_toml(path, child)
        family.insert(0, (path, table))
        parent = table.pop("extends", None)
        if parent is None:
            return family
        if not isinstance(parent, str):
            raise SleuthError(f"{path}: extends = {parent!r}: should be the name of one file")
        beside = path.parent / parent
        child, path = path, beside if beside.exists() else shipped_recipe(Path(parent)) or beside


def _parse_override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not key:
        raise SleuthError(f"--set {text}: should be KEY=VALUE, such as grpo.steps=50")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return key, value
    return key, parsed["value"] if parsed.keys() == {"value"} else value


# -- files with a single part of a recipe ------------------------------------------------------------------------------


class PartFile(StrictModel):
    """A file with a part of a recipe."""

    families: Row[str] = ()
    """Families of others, as in a recipe."""


class JudgeFile(PartFile):
    """A judge file."""

    judge: JudgeTable
    """The judge."""


class RewardFile(PartFile, MeasuredFields):
    """A reward file."""

    reward: Annotated[Row[RewardTable], Field(min_length=1)]  # pyright: ignore[reportGeneralTypeIssues]
    """The rewards; the score is their weighted sum."""


class TeacherFile(PartFile):
    """A teacher file."""

    teacher: TeacherRecipe
    """The model that generates data."""


def load_judge(path: Path, look: Look | None = None) -> JudgeFields:
    """The `[judge]` of a judge file. Raises a `SleuthError` with a line for each problem."""
    return _load_part(path, JudgeFile, look).judge


def load_rewards(path: Path, look: Look | None = None) -> RewardFile:
    """The `[[reward]]` tables of a reward file, and its `[audit_judge]`; raises likewise."""
    return _load_part(path, RewardFile, look)


def load_teacher(path: Path, look: Look | None = None) -> TeacherRecipe:
    """The `[teacher]` of a teacher file; raises likewise."""
    return _load_part(path, TeacherFile, look).teacher


def _load_part(path: Path, model: type[Part], look: Look | None) -> Part:
    if not path.is_file():
        raise SleuthError(f"{path}: no such file")
    draft = Draft(str(path))
    draft.merge(read_toml(path), str(path))
    if "stage" in draft.table:  # one line, not one for each key of it
        wanted = " or ".join(key for key in model.model_fields if key != "families")
        raise SleuthError(f"{path}: is a recipe; should hold {wanted} alone")
    draft.table = resolve_functions(draft.table, [str(path)])
    _use_named(draft)
    return read_table(draft, model, look)
