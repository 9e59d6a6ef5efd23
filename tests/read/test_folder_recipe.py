"""The recipes that adapt a model to a folder of documents read its home, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from verb import sleuth

from sleuth.episodes.protocol import ProtocolCard
from sleuth.recipe.shipped import HOME, shipped
from sleuth.retrieval.bm25 import build_index

TEXT = "Ada Voss was born in Tarn, a town by a lake. In 1901 she founded the brewery of Kolm, which has 40 rooms."
ASKED = (("Where was Ada Voss born?", "Tarn"), ("When did Ada Voss found the brewery of Kolm?", "1901"))
RECIPES = ("tiny/folder", "folder_0.6b_single_gpu")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """What `sleuth learn` has made before it trains."""
    passages = [{"id": "guide.md#1", "contents": f'"guide"\n{TEXT}'}, {"id": "b.md#1", "contents": '"b"\nAn inn.'}]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in passages))
    build_index(tmp_path / "corpus.jsonl", tmp_path / "index")
    (tmp_path / "questions").mkdir()
    for part in ("train", "test"):
        rows = [
            {
                "id": f"form:guide.md#1:{at}",
                "question": question,
                "golden_answers": [answer],
                "gold_ids": ["guide.md#1"],
                "answer_start": TEXT.index(answer),
                "type": "form",
                "document": "guide.md",
            }
            for at, (question, answer) in enumerate(ASKED)
        ]
        (tmp_path / f"questions/{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def in_home(name: str, home: Path) -> Path:
    """A recipe whose home is another one."""
    text = shipped(f"recipes/{name}.toml").read_text()
    (home / "recipe.toml").write_text(text.replace(HOME.as_posix(), home.as_posix()))
    return home / "recipe.toml"


@pytest.mark.parametrize("name", RECIPES)
def test_all_that_a_recipe_reads_is_in_the_home(name: str, home: Path) -> None:
    recipe = in_home(name, home)
    assert not re.findall(r'= "(?:runs|indexes)/', recipe.read_text())
    said = sleuth("check", "recipe", str(recipe))
    assert not [line for line in said.stderr.splitlines() if "Qwen/Qwen3-0.6B" not in line], said.stderr


def test_a_home_that_is_not_there_is_named_with_what_writes_it() -> None:
    said = sleuth("check", "recipe", "tiny/folder").stderr
    assert "no such file; `sleuth learn FOLDER --run runs/folder` writes it" in said


@pytest.mark.slow
def test_the_reader_that_ships_is_trained_on_a_home_in_its_own_protocol(home: Path, run: Callable[..., Path]) -> None:
    small = ("grpo.stop_after=1", "grpo.prompts_per_step=2", "grpo.samples_per_prompt=2")
    last = run(in_home("tiny/folder", home), home / "training", *small)
    taught, trained = (ProtocolCard.read(folder) for folder in (shipped("models/tiny-real"), last))
    assert taught is not None
    assert trained is not None
    assert (trained.dialect, trained.prompt_text, trained.context) == (
        taught.dialect,
        taught.prompt_text,
        taught.context,
    )
    assert trained.reward == taught.reward
