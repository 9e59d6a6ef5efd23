"""Imports run downward: the layers in their order, and no room of a lower layer asks for a family. An import inside a
function counts too."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import sleuth

PACKAGE = Path(sleuth.__file__).parent
FAMILIES = {"search", "think", "cite", "read"}
LAYERS = (
    {"types", "rollout", "render", "ranks", "family", "dialect", "recipe", "host", "own"},
    {"learn", "kernels", "engines", "retrieval", "judges", "data", "world"},
    {"training", "evaluation", "answers", "episodes", "runs", "convert", "terminal"},
    FAMILIES,
    {"cli", "serve", "report", "plan", "trainers", "__main__"},
)
"""The nouns; what computes; what trains; what a model learns; what people touch."""
MAY_USE = {("cite", "search"), ("read", "search")}
"""The families that build on another one."""
PENDING: frozenset[str] = frozenset()
"""What has not been mended since the families have rooms: a file, and the room that it imports from above, or a family
that another one names. Lines may go and never come."""
FLOORS = 14
"""The longest chain of imports from room to room; it falls with the rooms."""
LIGHT = ("types", "dialect", "family", "recipe", "own", "report", "retrieval", "judges", "data", "answers")
HEAVY = {"excerpts", "factory"}  # loaded where they are used, and only there
LAYER = {room: layer for layer, rooms in enumerate(LAYERS) for room in rooms}


@cache
def imported(file: Path) -> tuple[str, ...]:
    """Every module that a file imports, also inside functions."""
    found: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: imports are absolute"
            ours = node.module == "sleuth"
            found += (f"sleuth.{alias.name}" for alias in node.names) if ours else (node.module or "",)
    return tuple(found)


def our_imports() -> Iterator[tuple[Path, str, str]]:
    """(file, its room, an imported room) for each import of sleuth; the package's root contains only its version."""
    for file in sorted(PACKAGE.rglob("*.py")):
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for module in imported(file):
            if module.startswith("sleuth.") and room != "__init__" and (other := module.split(".")[1]) != "__version__":
                yield file, room, other


def rooms_used() -> dict[str, set[str]]:
    """The rooms that each room imports, but for what is pending."""
    rooms = defaultdict(set)
    for file, room, other in our_imports():
        if room != other and f"{file.relative_to(PACKAGE)} {other}" not in PENDING:
            rooms[room].add(other)
    return rooms


def test_every_room_has_a_layer() -> None:
    assert {room for _, *rooms in our_imports() for room in rooms} <= LAYER.keys()


def test_the_architecture_page_has_every_room_in_its_layer() -> None:
    page = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = re.findall(r"^\|[^|]*\| `(\w+)` \|", page.partition("## The rooms")[2], re.MULTILINE)
    layers = [LAYER[room] for room in rooms]
    assert layers == sorted(layers, reverse=True)
    assert {*rooms} == LAYER.keys() - {"__main__"}


def test_imports_run_downward() -> None:
    upward = {
        f"{file.relative_to(PACKAGE)} {other}" for file, room, other in our_imports() if LAYER[other] > LAYER[room]
    }
    assert upward == {one for one in PENDING if one.split("/")[0].removesuffix(".py") not in FAMILIES}


def test_families_do_not_import_each_other() -> None:
    walls = {
        f"{file.relative_to(PACKAGE)} {other}"
        for file, room, other in our_imports()
        if {room, other} <= FAMILIES and room != other and (room, other) not in MAY_USE
    }
    assert walls == {one for one in PENDING if one.split("/")[0] in FAMILIES}


def test_rooms_of_one_layer_do_not_import_each_other_in_a_circle() -> None:
    TopologicalSorter(rooms_used()).prepare()


def test_no_chain_of_imports_from_room_to_room_is_longer_than_the_floors() -> None:
    rooms = rooms_used()

    @cache
    def floors(room: str) -> int:
        return 1 + max(map(floors, rooms.get(room, ())), default=0)

    assert max(map(floors, [*rooms])) <= FLOORS


@pytest.mark.parametrize("room", ["engines", "serve", "training"])
def test_parts_of_a_room_do_not_import_each_other_in_a_circle(room: str) -> None:
    parts = defaultdict(set)
    for file in sorted((PACKAGE / room).rglob("*.py")):
        part = ".".join(("sleuth", *file.relative_to(PACKAGE).parent.parts))
        parts[part].update({module.rpartition(".")[0] for module in imported(file)} - {part})
    TopologicalSorter(parts).prepare()


def test_types_imports_nothing_of_ours() -> None:
    assert not [other for _, room, other in our_imports() if room == "types"]


def test_light_rooms_and_tables_of_families_never_load_torch() -> None:
    files = [PACKAGE / f"{room}.py" for room in LIGHT] + [
        file for room in LIGHT for file in sorted((PACKAGE / room).glob("[!_]*.py")) if file.stem not in HEAVY
    ]
    modules = ["sleuth.host.model_path", "sleuth.terminal.recipe_inputs", "sleuth.plan.fit"]
    modules += [".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts) for file in files if file.exists()]
    script = f"""
import importlib, sys
from typing import get_args
def refuse(name):
    if "torch" in sys.modules or "transformers" in sys.modules:
        sys.exit(name)
for module in {modules}:
    importlib.import_module(module)
    refuse(module)
from sleuth import family
for part in get_args(family.Part):
    family.tables(part)
    refuse(part)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_tools_and_benchmarks_import_what_there_is() -> None:
    for file in (
        one for folder in ("tools", "benchmarks") for one in sorted((PACKAGE.parents[1] / folder).rglob("*.py"))
    ):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("sleuth"):
                continue
            place = PACKAGE.parent.joinpath(*str(node.module).split("."))
            source = place.with_suffix(".py") if place.with_suffix(".py").is_file() else place / "__init__.py"
            for alias in node.names:
                known = (
                    re.search(rf"\b{alias.name}\b", source.read_text()) or place.joinpath(f"{alias.name}.py").is_file()
                )
                assert known, f"{file}:{node.lineno}: there is no {alias.name} in {node.module}"
