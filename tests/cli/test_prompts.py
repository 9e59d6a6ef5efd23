"""`sleuth prompts`: what can be named, and what is brought in."""

from __future__ import annotations

from pathlib import Path

import pytest
from verb import printed_json, sleuth

from sleuth.episodes.library import PUBLISHED, PublishedPrompt, sha256_of

TEXT = "Look it up: {question}"
SHA256 = sha256_of(TEXT.encode())


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    theirs = PublishedPrompt(
        name="theirs", role="user", place="{question}", source="a page", sha256=SHA256, ours="plain"
    )
    monkeypatch.setitem(PUBLISHED, "theirs", theirs)


def test_missing_prompts_are_listed_with_where_they_are_published_until_they_are_imported(tmp_path: Path) -> None:
    listed = sleuth("prompts").stdout
    assert any(line.split()[:3] == ["plain", "21", "bytes"] for line in listed.splitlines())
    assert "theirs: published as a page (our own words for it: plain)" in listed
    assert listed.endswith("Get the file and run: sleuth prompts import NAME FILE\n")
    (tmp_path / "page.txt").write_text(f"{TEXT}\n")
    imported = sleuth("prompts", "import", "theirs", tmp_path / "page.txt")
    assert 'prompt = "theirs", prompt_role = "user"' in imported.stdout
    assert printed_json("prompts", "import", "theirs", tmp_path / "page.txt")
    assert "theirs: published as" not in sleuth("prompts").stdout
    rows = {row["name"]: row for row in printed_json("prompts")["prompts"]}
    theirs = {"name": "theirs", "origin": "published", "role": "user", "source": "a page", "ours": "plain"}
    assert rows["theirs"] == theirs | {"there": True, "bytes": 22, "sha256": SHA256}
    assert (rows["plain"]["origin"], rows["p3_decide_no_ex"]["there"]) == ("ours", False)
