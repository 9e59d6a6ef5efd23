"""`sleuth prompts`: what can be named, and what is brought in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from verb import sleuth

from sleuth.episodes.library import PUBLISHED, PublishedPrompt, sha256_of

TEXT = "Look it up: {question}"


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    theirs = PublishedPrompt(
        name="theirs",
        role="user",
        place="{question}",
        source="a page",
        sha256=sha256_of(TEXT.encode()),
        ours="plain",
    )
    monkeypatch.setitem(PUBLISHED, "theirs", theirs)


def test_prompts_are_listed_with_where_the_missing_ones_are_published() -> None:
    result = sleuth("prompts")
    assert result.exit_code == 0
    assert any(line.split()[:3] == ["plain", "21", "bytes"] for line in result.stdout.splitlines())
    assert "theirs: published as a page (our own words for it: plain)" in result.stdout
    assert result.stdout.endswith("Get the file and run: sleuth prompts import NAME FILE\n")


def test_an_imported_prompt_is_listed_as_there_and_says_how_a_recipe_names_it(tmp_path: Path) -> None:
    (tmp_path / "page.txt").write_text(f"{TEXT}\n")
    result = sleuth("prompts", "import", "theirs", tmp_path / "page.txt")
    assert result.exit_code == 0
    assert 'prompt = "theirs", prompt_role = "user"' in result.stdout
    assert "theirs: published as" not in sleuth("prompts").stdout
    rows = {row["name"]: row for row in json.loads(sleuth("prompts", "--json").stdout)["prompts"]}
    assert rows["theirs"] == {
        "name": "theirs",
        "origin": "published",
        "role": "user",
        "there": True,
        "bytes": 22,
        "sha256": sha256_of(TEXT.encode()),
        "source": "a page",
        "ours": "plain",
    }
    assert (rows["plain"]["origin"], rows["p3_decide_no_ex"]["there"]) == ("ours", False)


def test_json_is_one_object_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "page.txt").write_text(TEXT)
    for arguments in [("prompts", "--json"), ("prompts", "import", "theirs", tmp_path / "page.txt", "--json")]:
        result = sleuth(*arguments)
        assert isinstance(json.loads(result.stdout), dict)
        assert result.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("theirs", "Look it down: {question}", "does not hold theirs: nothing in it has the sha256"),
        ("mine", TEXT, "mine: no published prompt of that name; there are p1_basic_w_ex"),
    ],
)
def test_a_failed_import_ends_with_status_2_and_one_line(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    (tmp_path / "page.txt").write_text(text)
    result = sleuth("prompts", "import", name, tmp_path / "page.txt")
    assert (result.exit_code, result.stdout) == (2, "")
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_verb_is_listed_and_explains_itself() -> None:
    assert "\n  prompts " in sleuth("--help").stdout
    assert "Usage: sleuth prompts import " in sleuth("prompts", "import", "--help").stdout
