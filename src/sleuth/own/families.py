"""Families of users: named by a recipe as `module:name`, or by an installed package as an entry point."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any, get_args

from sleuth.family import OTHERS, Family, Part, all_families, changed, load_named, verbs
from sleuth.host.threads import to_stderr
from sleuth.own.functions import load_object
from sleuth.own.permission import CODE
from sleuth.types import SleuthError

GROUP = "sleuth.families"
"""The entry points of installed families."""
BASES = {
    "stages": "sleuth.recipe.stage:StageFields",
    "environments": "sleuth.recipe.envs:EnvFields",
    "rewards": "sleuth.recipe.rewards:RewardFields",
    "judges": "sleuth.recipe.judges:JudgeFields",
    "data": "sleuth.recipe.data:DataFields",
    "credits": "sleuth.recipe.grpo:CreditFields",
}
"""What the tables of a part derive from."""


def use(name: str, *, ask: bool = True) -> None:
    """Adds the family that `module:name` names, as recipes name functions. Raises SleuthError, with file and line, if
    it cannot be imported, takes a name of another family or has a table that cannot be used; with `ask`, if its code
    may not run here."""
    if name in OTHERS and CODE.refusal:
        return  # in use already, by what may bring code: a run's own family beside the reward that scores it again
    found, where = load_object(name, ask=ask)
    if OTHERS.get(name) is found:
        return
    before = OTHERS.pop(name, None)
    changed()
    try:
        if problem := _problem(found):
            raise SleuthError(f"{where}: {name.rpartition(':')[2]}: {problem}")
        OTHERS[name] = found
    except SleuthError:
        if before is not None:
            OTHERS[name] = before
        raise
    finally:
        changed()


@cache
def use_installed() -> None:
    """Adds the families of installed packages; prints a line for each that cannot be used."""
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            use(point.value, ask=False)
        except SleuthError as error:
            package = point.dist.name if point.dist is not None else "a package"
            to_stderr(f"the family {point.name} of {package} cannot be used: {error}")


def _problem(family: Any) -> str:
    """What is wrong with a family of others; empty if nothing is."""
    if not isinstance(family, Family):
        return f"expected a sleuth.family.Family, found {family!r:.60}"
    for other in all_families():
        if other.name == family.name:
            return f"there is another family named {family.name!r}; choose another name"
        for part in get_args(Part):
            for kind in getattr(other, part).keys() & getattr(family, part).keys():
                return f"{part}: {kind!r} is a name of the family {other.name!r}; choose another name"
    taken = {verb for section in verbs().values() for verb in section}
    for verb in [verb for section in family.verbs.values() for verb in section if verb in taken]:
        return f"verbs: {verb!r} is one already; choose another name"
    for part in get_args(Part):
        for kind, name in getattr(family, part).items():
            if problem := _table_problem(part, kind, name):
                return f"{part}: {kind!r}: {problem}"
    return ""


def _table_problem(part: str, kind: str, name: str) -> str:
    try:
        table = load_object(name, ask=False)[0]
    except SleuthError as error:
        return str(error)
    if part in BASES:
        base = load_named(BASES[part])
        if not (isinstance(table, type) and issubclass(table, base)):
            return f"{name} should be a class derived from {base.__name__}"
        if table.own_kind() != kind:
            return f"{name} has kind = {table.own_kind()!r}"
    return ""
