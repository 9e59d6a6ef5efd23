"""docs/published/*-facts.csv number every fact of the five descriptions, and what they name as shown is there."""

from __future__ import annotations

import ast
import csv
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from sleuth.recipe.published import system_names
from tools.code_blocks import _command_problems

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "published_systems.md"
PAGES = sorted((ROOT / "docs" / "published").glob("*.md"))
STATES = ("works", "at tiny size", "cannot be had here", "differs")


def rows(page: Path, heading: str) -> Iterator[dict[str, str]]:
    """The rows of all tables that a page has or links to, and that have a column of that heading, by their headings."""
    headings: list[str] = []
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if headings and cells and not line.startswith("|---") and heading in headings:
            yield dict(zip(headings, cells, strict=True))
        headings = headings or cells if cells else []
    for file in tables(page):
        found = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
        yield from found if found and heading in found[0] else []


def tables(page: Path) -> list[Path]:
    return [page.parent / name for name in re.findall(r"\]\((\S+\.csv)\)", page.read_text(encoding="utf-8"))]


@cache
def names_in(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_file_and_test_of_the_pages_exists() -> None:
    lost = []
    for page in (file for one in (INDEX, *PAGES) for file in (one, *tables(one))):
        for name in re.findall(r"`((?:src|tests|recipes|docs)/[^`\s]+)`", page.read_text(encoding="utf-8")):
            path, _, test = name.partition("::")
            if not (ROOT / path).exists() or (test and test not in names_in(ROOT / path)):
                lost.append(f"{page.name}: {name}")
    assert not lost


def test_facts_have_consecutive_numbers_a_state_and_a_test_and_their_commands_can_be_typed() -> None:
    first = []
    for page in PAGES:
        facts = list(rows(page, "number"))
        system = facts[0]["number"].partition(".")[0]
        first.append(system)
        assert [fact["number"] for fact in facts] == [f"{system}.{at + 1}" for at in range(len(facts))]
        for fact in facts:
            assert fact["published"], fact
            assert re.match(r"differs: \S|(?!differs)", fact["state"]), f"does not say how it differs: {fact}"
            assert fact["state"].startswith(STATES), fact
            assert "tests/" in fact["test"], fact
            assert (program := shlex.split(fact["command"].strip("`")))[0] == "sleuth", fact
            assert list(_command_problems(program[1:])) == [], fact
    assert sorted(first) == ["S0", "S1", "S2", "S3", "S4"]


def test_what_no_description_says_has_no_number_and_says_whether_it_works() -> None:
    for page in (INDEX, *PAGES):
        for row in rows(page, "there"):
            assert row["state"].startswith((*STATES, "not built")), row
            assert (row["where it is"] and row["test"]) or row["state"].startswith(("not built", "cannot")), row


def test_the_index_counts_the_facts_of_each_page_and_every_system_and_recipe_has_its_page() -> None:
    counted = {name: row for row in rows(INDEX, "facts") for name in re.findall(r"published/(\S+)\.md", row["system"])}
    for page in PAGES:
        states = [fact["state"] for fact in rows(page, "number")]
        there = {state: str(sum(one.startswith(state) for one in states)) for state in STATES}
        assert counted[page.stem].items() >= (there | {"facts": str(len(states))}).items(), page.stem
    assert counted.keys() >= set(system_names())
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for recipe in ROOT.glob("recipes/*.toml"):
        if recipe.stem.startswith(("reason_over_search", "thinking_", "refiner_4b", "search_r1_slime")):
            assert f"`recipes/{recipe.name}`" in text, recipe.name
