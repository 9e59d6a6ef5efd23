"""Imports run downward: the rooms in their order. An import inside a function counts too."""

from __future__ import annotations

import ast
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
LEVELS = (
    {"cli", "__main__"},
    {"pipeline", "plan"},
    {"search", "think", "cite", "read"},
    {"training", "annotation", "report", "serve", "convert", "interop", "model_check"},
    {"evaluation"},
    {"stage_context"},
    {"factories"},
    {"rollout", "metrics"},
    {"envs", "rewards", "engines"},
    {"judges", "retrieval", "learn", "data", "render", "runs", "world", "distributed"},
    {
        "recipe",
        "dialects",
        "prompts",
        "ranks",
        "model_path",
        "terminal",
        "threads",
        "memory",
        "variables",
        "user_code",
        "hardware",
    },
    {"types", "family"},
)
FLOORS = 19
"""The longest chain of imports from room to room; it falls with the rooms."""
LIGHT = (
    *("types", "recipe", "dialects", "prompts", "report", "retrieval", "judges", "data", "metrics", "user_code"),
    *("rewards", "search", "think", "cite", "read"),
)
HEAVY = {"on_cards"}  # loaded where an index is opened on a card, and only there
DEPTH = {room: depth for depth, rooms in enumerate(LEVELS) for room in rooms}


@cache
def imported(file: Path) -> tuple[str, ...]:
    """Every module that a file imports, also inside functions."""
    found: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: imports are absolute"
            found.append(node.module or "")
    return tuple(found)


def our_imports() -> Iterator[tuple[Path, str, str]]:
    """(file, its room, an imported room) for each import of sleuth; the package's root contains only its version."""
    for file in sorted(PACKAGE.rglob("*.py")):
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for module in imported(file):
            if module.startswith("sleuth.") and room != "__init__":
                yield file, room, module.split(".")[1]


def test_every_room_has_a_level() -> None:
    assert {room for _, *rooms in our_imports() for room in rooms} <= DEPTH.keys()


def test_imports_run_downward() -> None:
    upward = [
        f"{file.relative_to(PACKAGE)} imports {other}"
        for file, room, other in our_imports()
        if DEPTH[other] < DEPTH[room]
    ]
    assert not upward


def test_rooms_of_one_level_do_not_import_each_other_in_a_circle() -> None:
    rooms = defaultdict(set)
    for _, room, other in our_imports():
        if room != other:
            rooms[room].add(other)
    TopologicalSorter(rooms).prepare()


def test_no_chain_of_imports_from_room_to_room_is_longer_than_the_floors() -> None:
    rooms = defaultdict(set)
    for _, room, other in our_imports():
        if room != other:
            rooms[room].add(other)

    @cache
    def floors(room: str) -> int:
        return 1 + max(map(floors, rooms[room]), default=0)

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


def test_light_rooms_never_load_torch() -> None:
    files = [file for room in LIGHT for file in sorted((PACKAGE / room).glob("[!_]*.py")) if file.stem not in HEAVY]
    modules = [
        "sleuth.types",
        "sleuth.model_path",
        "sleuth.plan.inputs",
        "sleuth.plan.fit",
        *(f"sleuth.{file.parent.name}.{file.stem}" for file in files),
    ]
    script = f"""
import importlib, sys
for module in {modules}:
    importlib.import_module(module)
    if "torch" in sys.modules or "transformers" in sys.modules:
        sys.exit(module)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
