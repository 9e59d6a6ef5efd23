"""The recipes and tiny models that ship with the package, by name, so that they are found from any folder.

A file or folder of that name that is here, in the current folder, comes first.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUFFIX = ".toml"
WORLD = Path("runs/world")
"""Where the tiny recipes read the generated world."""
REFINER_ROWS = Path("refiner")
"""Where the recipes for refiners read their rows."""
HOME = Path("runs/folder")
"""The home of a folder of documents in the recipes for one; `sleuth learn` puts that of its folder in its place."""
DOCUMENTS, INDEX, QUESTIONS, TRAINING = (Path(name) for name in ("documents.json", "index", "questions", "training"))
CERTIFICATE, STEPS, GGUF = Path("certificate.json"), Path("learn.json"), Path("model.gguf")
"""What a home has: the record of its documents, their index, questions made of them, the run that trains on these, the
certificate of its model, how far `sleuth learn` is, and the file to take away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedRecipe:
    """One line of `sleuth recipes`. `card` is the hardware that it is written for, "CPU" for a tiny model; `about` is
    the first paragraph of its comment, which names what it reproduces; `is_sweep`: of several runs."""

    name: str
    file: Path
    card: str
    about: str
    is_sweep: bool


def shipped(name: str) -> Path:
    """The path of a file or folder of the checkout that the wheel contains too: `shipped("recipes/demo.toml")`."""
    package = Path(__file__).parents[1]
    wheel = package / "shipped" / name
    return wheel if wheel.exists() else package.parents[1] / name


def recipe_names() -> list[str]:
    """The names of all recipes, the tiny ones last: `demo`, `tiny/refiner`."""
    folder = shipped("recipes")
    names = (file.relative_to(folder).with_suffix("") for file in folder.rglob(f"*{SUFFIX}"))
    return [name.as_posix() for name in sorted(names, key=lambda name: (len(name.parts), name))]


def home_of(folder: Path) -> Path:
    """The home of a folder of documents, if no other one is named."""
    return Path("runs") / folder.resolve().name


def find_recipe(path: Path) -> Path:
    """The file at `path` or, where none is there, the recipe of that name, in the folder `recipes` here before those
    that ship; any other path as it is."""
    if path.is_file() or (ships := shipped_recipe(path)) is None:
        return path
    here = Path("recipes") / f"{_name(path)}{SUFFIX}"
    return here if here.is_file() else ships


def shipped_recipe(path: Path) -> Path | None:
    """The recipe that a path names: `demo`, `tiny/refiner` or, as in a checkout, `recipes/demo.toml`."""
    name = _name(path)
    return shipped(f"recipes/{name}{SUFFIX}") if name in recipe_names() else None


def hint_for(path: Path) -> str:
    """What may have been meant by a name of no recipe: `; did you mean demo? ...`. Empty for an absolute path."""
    if path.is_absolute():
        return ""
    near = difflib.get_close_matches(_name(path), recipe_names(), n=1)
    return f"; {f'did you mean {near[0]}? ' if near else ''}`sleuth recipes` lists those that ship"


def find_model(model: str) -> str:
    """The model as it is named or, for a tiny model such as `models/tiny-base` that is not here, the folder that
    ships."""
    is_ours = re.fullmatch("models/tiny-[a-z]+/?", model) is not None
    return str(place) if is_ours and not Path(model).exists() and (place := shipped(model)).is_dir() else model


def described(name: str, table: Mapping[str, Any]) -> ShippedRecipe:
    """The line of a recipe whose tables, with those of its parents, are `table`."""
    file = shipped(f"recipes/{name}{SUFFIX}")
    return ShippedRecipe(
        name=name, file=file, card=table.get("card", "CPU"), about=_first_paragraph(file), is_sweep="arm" in table
    )


def recipe_text(name: str) -> str:
    """The text of a recipe; what it extends is named so that a copy of it is found from any folder."""
    file = shipped(f"recipes/{name}{SUFFIX}")

    def by_name(match: re.Match[str]) -> str:
        parent = (file.parent / match[1]).resolve().relative_to(shipped("recipes").resolve())
        return f'extends = "{parent.with_suffix("").as_posix()}"'

    return re.sub('^extends = "(.+)"', by_name, file.read_text(encoding="utf-8"), flags=re.MULTILINE)


def _name(path: Path) -> str:
    return path.as_posix().removeprefix("recipes/").removesuffix(SUFFIX)


def _first_paragraph(file: Path) -> str:
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.rstrip() in ("", "#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)
