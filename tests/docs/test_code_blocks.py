"""README.md and docs/ say nothing in code that is not so: commands, recipe keys, files and modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import code_blocks
from tools.code_blocks import ROOT, pages, problems


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


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[[stage]]\nkind = "grpo"\nstpes = 3', "stage.stpes is no key of GrpoRecipe"),
        ('[stage.loss]\nclip_low = "much"', "stage.loss.clip_low: Input should be a valid number"),
        ('[stage.credit]\nkind = "search_gain"\nmargin = 1.0', "stage.credit: Value error"),
        ('[judge]\nkind = "http"\nmodle = "x"', "judge.modle is no key of HttpJudgeRecipe"),
        ("[table]\nfigure = []", "table.figure is no key of"),
        ("name = demo", "not valid TOML"),
    ],
)
def test_a_part_of_a_recipe_that_could_not_be_read_is_found(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [found] = told(f"```toml\n{text}\n```\n", tmp_path, monkeypatch)
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Try `sleuth trian X`.", "sleuth has no trian"),
        ("Try `sleuth train RECIPE [--stes N]`.", "sleuth train has no option --stes"),
        ("See `sleuth.typos.Task`.", "sleuth.typos.Task: there is no such module, and nothing of that name in one"),
        ("<!-- needs: luck -->\n```sh\nls\n```", "needs: luck: should be one of card, cluster, hub, network, server"),
        ("```\nsleuth train x.toml\n```", "has a command and is not fenced as sh"),
    ],
)
def test_code_in_a_sentence_and_a_wrong_mark_are_found(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(f"{text}\n", tmp_path, monkeypatch) == [problem]


def test_a_table_of_keys_names_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = "| TRL | ours |\n|---|---|\n| `epsilon` | `clip_low`, not `epsilon` |\n| `steps` | `loss.stpes = 3` |\n"
    keys = "| key | default |\n|---|---|\n| `margin` | 1 |\n| `mragin` | 2 |\n"
    other = "| figure | meaning |\n|---|---|\n| `mragin` | |\n"
    found = told(f"{ours}\n{keys}\n{other}", tmp_path, monkeypatch)
    assert found == ["loss.stpes = 3 is no key of any recipe", "mragin is no key of any recipe"]
