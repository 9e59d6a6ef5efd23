"""What a recipe's `MODULE:NAME` finds, imports and hashes, and how it complains."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from refusals import line_of

from sleuth.own.functions import UserCodeError, load_function, merged_sources, require_arguments, resolved

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a file of the test's folder, which is the current one. What is imported from there is forgotten."""
    before = dict(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    yield write
    for name in sys.modules.keys() - before.keys():
        del sys.modules[name]


def complaint(name: str) -> str:
    return line_of(load_function, name)


def test_a_module_is_looked_for_in_the_folders_in_their_order(write: Write, tmp_path: Path) -> None:
    write("beside/mine.py", "")
    write("mine.py", "")
    write("pkg/__init__.py", "")
    assert resolved("mine:f", [tmp_path / "beside", Path()]) == "beside/mine.py:f"
    assert resolved("mine:f", [tmp_path / "elsewhere", Path()]) == "mine.py:f"
    assert resolved("pkg:f", [Path()]) == "pkg/__init__.py:f"
    assert resolved("json:dumps", [Path()]) == "json:dumps"
    assert resolved("beside/mine.py:f", [Path()]) == "beside/mine.py:f"


def test_what_is_found_has_its_name_its_line_and_the_hash_of_its_file(write: Write) -> None:
    text = "import math\n\n\ndef brevity(episode):\n    return math.pi\n"
    write("folder/mine.py", text)
    function = load_function("folder/mine.py:brevity")
    assert (function.name, function.short_name, function.where) == ("mine:brevity", "brevity", "folder/mine.py:4")
    assert function.sources == {"mine.py": hashlib.sha256(text.encode()).hexdigest()}
    assert 3 < function.call(None) < 4


def test_the_sources_are_the_files_that_the_module_imports_from_its_own_folder(write: Write) -> None:
    write("pkg/__init__.py", "")
    write(
        "pkg/rewards.py",
        "from . import words\nfrom pkg.deep import deeper\nimport beside\n\ndef f(episode): return words.N\n",
    )
    write("pkg/words.py", "N = 1\n")
    write("pkg/deep.py", "import json\ndeeper = 2\n")
    write("beside.py", "")
    write("unused.py", "")
    function = load_function("pkg/rewards.py:f")
    assert list(function.sources) == ["beside.py", "pkg/__init__.py", "pkg/deep.py", "pkg/rewards.py", "pkg/words.py"]
    assert (function.name, function.call(None)) == ("pkg.rewards:f", 1)


def test_changed_source_is_imported_again_also_where_only_an_imported_file_changed(write: Write) -> None:
    write("mine.py", "import values\ndef f(episode): return values.N\n")
    write("values.py", "N = 1\n")
    first = load_function("mine.py:f")
    assert load_function("mine.py:f").call is first.call
    write("values.py", "N = 20\n")
    second = load_function("mine.py:f")
    assert (first.call(None), second.call(None)) == (1, 20)
    assert first.sources != second.sources


def test_a_module_that_a_notebook_imported_is_the_one_of_the_file_that_is_there_now(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    write("mine.py", "def f(episode):\n    return 1\n")
    importlib.import_module("mine")
    assert load_function("mine.py:f").call(None) == 1
    importlib.import_module("mine").f = lambda episode: 9
    write("mine.py", "def f(episode):\n    return 2.5\n")
    function = load_function("mine.py:f")
    assert (function.call(None), function.sources.keys()) == (2.5, {"mine.py"})


def test_a_module_that_another_imports_is_not_imported_twice(write: Write) -> None:
    write("other.py", "LOADED = object()\n\n\ndef g(episode):\n    return LOADED\n")
    write("mine.py", "import other\n\n\ndef f(episode):\n    return other.LOADED\n")
    assert load_function("mine.py:f").call(None) is load_function("other.py:g").call(None)


def test_a_file_that_a_function_reads_is_hashed_and_read_again_when_it_changed(write: Write) -> None:
    words = write("words.txt", "one")
    write("mine.py", "WORDS = open('words.txt').read()\n\n\ndef f(episode):\n    return WORDS\n")
    before = load_function("mine.py:f", [Path("words.txt")])
    assert before.sources["words.txt"] == hashlib.sha256(b"one").hexdigest()
    words.write_text("two")
    assert load_function("mine.py:f", [Path("words.txt")]).call(None) == "two"
    words.unlink()
    with pytest.raises(UserCodeError, match=r"^words.txt: No such file or directory$"):
        load_function("mine.py:f", [Path("words.txt")])


def test_two_files_of_one_name_are_two_modules(write: Write) -> None:
    write("a/mine.py", "def f(episode): return 'a'\n")
    write("b/mine.py", "def f(episode): return 'b'\n")
    assert [load_function(f"{folder}/mine.py:f").call(None) for folder in "aba"] == ["a", "b", "a"]


def test_an_installed_package_is_found_by_its_name() -> None:
    function = load_function("json.encoder:JSONEncoder")
    assert function.name == "json.encoder:JSONEncoder"
    assert "json/encoder.py" in function.sources


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nowhere:f", "there is no module nowhere: nowhere.py is neither beside the recipe nor in the current folder"),
        ("brevity", "should be MODULE:NAME, such as my_rewards:brevity; found 'brevity'"),
        ("gone.py:f", "gone.py: no such file"),
        ("mine.py:brevty", "mine.py has no brevty; the nearest is brevity"),
        ("mine.py:LIMIT", "mine.py: LIMIT is 40; expected a function or a class"),
        ("broken.py:f", "broken.py:2: SyntaxError: "),
        ("needs.py:f", "needs.py:3: cannot be imported: ModuleNotFoundError: No module named 'not_installed_here'"),
        ("raises.py:f", "raises.py:2: cannot be imported: ZeroDivisionError: division by zero"),
        ("exits.py:f", "exits.py:1: cannot be imported: SystemExit: 3"),
        ("json.py:f", "json.py: a module named json is already imported from "),
        ("antigravity.py:f", "antigravity.py: antigravity is a module of Python itself; give yours another name"),
        ("sys:exit", "sys is no module of Python source"),
    ],
)
def test_what_cannot_be_found_or_imported_is_one_line_with_the_users_file(
    write: Write, name: str, expected: str
) -> None:
    write("mine.py", "LIMIT = 40\ndef brevity(episode): return 1\n")
    write("broken.py", "x = 1\ndef f(:\n")
    write("needs.py", "\n\nimport not_installed_here\n")
    write("raises.py", "\n1 / 0\n")
    write("exits.py", "raise SystemExit(3)\n")
    write("json.py", "")
    write("antigravity.py", "")
    assert complaint(name).startswith(expected)


@pytest.mark.parametrize(
    ("definition", "parameters", "expected"),
    [
        ("def f(): ...", {}, "mine.py:1: f: takes 0 arguments; expected f(episode)"),
        ("def f(episode, limit): ...", {}, "mine.py:1: f: needs a value of limit, and parameters has none"),
        ("def f(episode, limit=1): ...", {"limt": 3}, "mine.py:1: f: has no parameter limt; the nearest is limit"),
        ("def f(episode): ...", {"x": 3}, "mine.py:1: f: has no parameter x; it has none"),
        ("f = dict.fromkeys", {}, "mine.py:1: f: "),
    ],
)
def test_a_wrong_signature_is_told_with_the_line_of_the_definition(
    write: Write, definition: str, parameters: dict[str, int], expected: str
) -> None:
    write("mine.py", definition + "\n")
    function = load_function("mine.py:f")
    with pytest.raises(UserCodeError) as caught:
        require_arguments(function, 1, parameters | ({"episode": 1} if "dict" in definition else {}), "f(episode)")
    assert str(caught.value).startswith(expected)


def test_any_parameter_is_taken_by_a_function_of_all_keywords(write: Write) -> None:
    write("mine.py", "def f(episode, **more): ...\n")
    require_arguments(load_function("mine.py:f"), 1, {"limit": 3}, "f(episode)")


def test_a_file_that_another_module_hides_is_refused_since_its_hash_would_be_recorded(write: Write) -> None:
    write("mine.py", "import numpy\ndef f(episode): ...\n")
    write("numpy.py", "")
    assert complaint("mine.py:f").startswith("numpy.py: a module named numpy is imported from ")
    write("a/own.py", "import values\ndef f(episode): return values.N\n")
    write("a/values.py", "N = 1\n")
    write("b/other.py", "import values\ndef f(episode): return values.N\n")
    write("b/values.py", "N = 2\n")
    assert load_function("a/own.py:f").call(None) == 1
    assert complaint("b/other.py:f").startswith("b/values.py: a module named values is imported from ")


def test_two_files_of_one_name_are_refused_and_one_file_twice_is_not() -> None:
    assert merged_sources({"a.py": "1", "b.py": "2"}, {"a.py": "1"}) == {"a.py": "1", "b.py": "2"}
    with pytest.raises(UserCodeError, match=r"a\.py: two different files have this name"):
        merged_sources({"a.py": "1"}, {"a.py": "2"})
