"""`make test-fast` runs something of every package."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from costs import Costs

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(file.parent.name for file in (ROOT / "src/sleuth").glob("*/__init__.py"))
LEAST = 3
"""Quick tests in the files that import from a package."""


def quick_tests(file: Path, tree: ast.Module, costs: Costs) -> Iterator[str]:
    """The quick test functions of a file."""
    for function in tree.body:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name.startswith("test_"):
            nodeid = f"{file.relative_to(ROOT)}::{function.name}"
            marks = {ast.unparse(mark) for mark in function.decorator_list}
            if "pytest.mark.slow" not in marks and costs.is_quick(nodeid, [one.arg for one in function.args.args]):
                yield nodeid


def packages_of(tree: ast.Module) -> set[str]:
    """The packages of sleuth from which a file imports, at its head or in a function."""
    found = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[1] for name in found if name.startswith("sleuth.")}


def test_every_package_has_quick_tests() -> None:
    costs, quick = Costs(), Counter[str]()
    for file in (ROOT / "tests").rglob("test_*.py"):
        tree = ast.parse(file.read_text())
        quick.update(dict.fromkeys(packages_of(tree), len([*quick_tests(file, tree, costs)])))
    assert PACKAGES
    assert [package for package in PACKAGES if quick[package] < LEAST] == []


def test_a_test_is_as_costly_as_what_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = Costs()
    costs.tests = {"tests/a/test_b.py::test_c": 0.5, "tests/a/test_b.py::test_e": 2.0}
    costs.fixtures = {"tests/a::built": 3.0}
    assert not costs.is_quick("tests/a/test_b.py::test_c[one]", [])
    assert not costs.is_quick("tests/a/test_b.py::test_d", ["tmp_path", "built"])
    assert costs.is_quick("tests/z/test_b.py::test_d", ["built"])  # another fixture of that name
    assert not costs.is_quick("tests/z/test_b.py::test_d", ["finished"])
    assert costs.is_quick("tests/a/test_b.py::test_d", ["tmp_path"])
    assert [costs.is_long(name) for name in ("tests/a/test_b.py::test_c", "tests/a/test_b.py::test_e[one]")] == [
        False,
        True,
    ]
