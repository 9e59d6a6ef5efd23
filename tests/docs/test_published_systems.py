"""docs/published_systems.md names files and tests that exist, and says of every row whether it works."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "published_systems.md"
ROWS = [
    (at, [cell.strip() for cell in line.strip("|").split("|")])
    for at, line in enumerate(PAGE.read_text(encoding="utf-8").splitlines(), start=1)
    if line.startswith("|") and not line.startswith(("| published", "|---"))
]
STATES = ("yes", "differs", "not yet")


@cache
def names_in(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_file_and_test_of_the_table_exists() -> None:
    lost = []
    for at, (_, where, shown, _) in ROWS:
        for name in re.findall(r"`([^`]+)`", f"{where} {shown}"):
            path, _, test = name.partition("::")
            if not (ROOT / path).exists() or (test and test not in names_in(ROOT / path)):
                lost.append(f"{at}: {name}")
    assert not lost


def test_every_row_has_a_state_and_what_works_is_shown() -> None:
    for at, (published, where, shown, state) in ROWS:
        assert published, at
        assert state.startswith(STATES), f"{at}: {state}"
        assert (where and shown) or state.startswith("not yet"), f"{at}: nothing shows it"
        assert not state.startswith("differs") or re.match(r"differs: \S", state), f"{at}: does not say how it differs"


def test_all_recipes_of_published_systems_are_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for recipe in ROOT.glob("recipes/*.toml"):
        if recipe.stem.startswith(("reason_over_search", "thinking_", "refiner_4b", "search_r1_slime")):
            assert f"`recipes/{recipe.name}`" in text, recipe.name
    assert len(ROWS) >= 100
