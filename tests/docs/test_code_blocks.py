"""README.md and docs/ say nothing in code that is not so: commands, recipe keys, files and modules."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from sleuth.cli.app import FIRST
from tools import code_blocks
from tools.code_blocks import COMMAND, ROOT, _line_problems, pages, problems


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_recipes_files_and_modules_of_a_page_exist(page: Path) -> None:
    assert problems(page) == []


def told(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is wrong with a page of this text, without the places."""
    monkeypatch.setattr(code_blocks, "ROOT", folder)
    for name in ("recipes", "models", "Makefile", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    page = folder / "page.md"
    page.write_text(text)
    return [problem.partition(": ")[2] for problem in problems(page)]


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("sleuth trian recipes/demo.toml", "sleuth has no trian"),
        ("sleuth report runs/demo --style=dark", "sleuth report: No such option: --style"),
        ("sleuth plan recipes/demo.toml --ranks many", "sleuth plan: Invalid value for '--ranks'"),
        ("FOO=1 .venv/bin/sleuth train", "sleuth train: Missing argument"),
        (
            "sleuth train recipes/demo.toml \\\n  --set 'stage.2.engine={ urls = [\"http://a:1\"] }'",
            '--set stage.2.engine={ urls = ["http://a:1"] }: stage.2.engine is no key here',
        ),
        ("sleuth train mine.toml --set stage.1.stpes=3", "--set stage.1.stpes=3: stage.stpes is no key of"),
        ("make deom", "make deom: the Makefile has no such target"),
        ("python -m benchmarks.nothing", "benchmarks.nothing: there is no such module"),
        ("cp recipes/dmeo.toml mine.toml", "recipes/dmeo.toml: there is no such file"),
    ],
)
def test_a_command_that_would_not_run_is_found(
    command: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [found] = told(f"Text.\n\n```sh\n{command}  # a comment\n```\n", tmp_path, monkeypatch)
    assert found.startswith(problem)


def test_a_table_of_keys_names_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = "| TRL | ours |\n|---|---|\n| `epsilon` | `clip_low`, not `epsilon` |\n| `steps` | `loss.stpes = 3` |\n"
    keys = "| key | default |\n|---|---|\n| `margin` | 1 |\n| `mragin` | 2 |\n"
    other = "| figure | meaning |\n|---|---|\n| `mragin` | |\n"
    found = told(f"{ours}\n{keys}\n{other}", tmp_path, monkeypatch)
    assert found == ["loss.stpes = 3 is no key of any recipe", "mragin is no key of any recipe"]


def verbs(command: Any, name: str = "") -> dict[str, Any]:
    inner = getattr(command, "commands", {})
    below = {words: one for verb in inner for words, one in verbs(inner[verb], f"{name} {verb}".strip()).items()}
    return below or {name: command}


def test_the_help_of_every_verb_ends_with_an_example_that_can_be_typed() -> None:
    for name, verb in verbs(COMMAND).items():
        line = verb.epilog.removeprefix("Example: ")
        assert line.startswith(f"sleuth {name}")
        assert list(_line_problems(shlex.split(line))) == [], line


def test_what_is_printed_without_arguments_fits_a_terminal_and_can_be_typed() -> None:
    lines = FIRST.splitlines()
    assert max(map(len, lines)) <= 80
    commands = [re.split(r" {2,}", line.strip())[0] for line in lines if line.startswith("  ")]
    assert len(commands) == 3
    assert [problem for line in commands for problem in _line_problems(shlex.split(line))] == []
