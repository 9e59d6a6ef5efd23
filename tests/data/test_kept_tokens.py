"""Tokens kept between starts: the same as without, found by the text, bounded, and not trusted if damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from sleuth.data import excerpts
from sleuth.data.excerpts import excerpts_of, read_tokens, remove_oldest, tokens_folder, write_tokens
from sleuth.recipe.data import TextRecipe
from sleuth.render import Renderer, load_tokenizer
from sleuth.types import Task

TOKENIZER = load_tokenizer(str(Path(__file__).parents[2] / "models" / "tiny-base"))


@pytest.fixture
def encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are encoded; all are worth keeping."""
    texts: list[str] = []
    render = Renderer.render
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(excerpts, "WORTH_SECONDS", 0.0)
    monkeypatch.setattr(Renderer, "render", lambda self, piece: texts.append(piece.text) or render(self, piece))
    return texts


def read(file: Path, *texts: str) -> list[Task]:
    file.write_text("".join(json.dumps({"id": f"d{at}", "text": text}) + "\n" for at, text in enumerate(texts)))
    data = TextRecipe(kind="text", texts=file, prefix_tokens=6, suffix_tokens=3)
    return excerpts_of(data, TOKENIZER).tasks


ONE, OTHER = " was born in Osmark in 1874. Osmark was", " lived in Osmark in 1874. Osmark was in"


def test_a_second_start_encodes_only_texts_that_are_new(encoded: list[str], tmp_path: Path) -> None:
    first = read(tmp_path / "t.jsonl", ONE, OTHER)
    assert encoded == [ONE, OTHER]
    assert read(tmp_path / "t.jsonl", ONE, OTHER) == first
    assert encoded == [ONE, OTHER]
    changed = read(tmp_path / "t.jsonl", ONE, OTHER + " 1874")
    assert encoded == [ONE, OTHER, OTHER + " 1874"]
    assert changed[0] == first[0]


def test_a_damaged_file_is_encoded_again_and_replaced(encoded: list[str], tmp_path: Path) -> None:
    first = read(tmp_path / "t.jsonl", ONE)
    [file] = tokens_folder().iterdir()
    whole = file.read_bytes()
    tokens = np.array(next(iter(read_tokens(file).values()))).tobytes()
    at = whole.index(tokens)
    other = bytes([whole[at] ^ 1])
    for broken in (whole[: len(whole) // 2], whole[:at] + other + whole[at + 1 :], b""):
        file.write_bytes(broken)
        assert read(tmp_path / "t.jsonl", ONE) == first
        assert read_tokens(file)
    assert encoded == [ONE] * 4


def test_the_files_used_last_stay_within_the_bound(tmp_path: Path) -> None:
    for at in range(3):
        write_tokens(tmp_path / f"{at}.npz", {bytes(16): np.arange(100, dtype=np.int32)})
        os.utime(tmp_path / f"{at}.npz", (at, at))
    remove_oldest(tmp_path, 2 * (tmp_path / "0.npz").stat().st_size)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["1.npz", "2.npz"]
