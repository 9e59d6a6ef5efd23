"""Before the first step: whatever a run would miss later is said now, in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sleuth.pipeline import require_inputs
from sleuth.recipe import Recipe, load_recipe
from sleuth.types import SleuthError
from sleuth.world.tokens import make_tokenizer

RECIPE = """
name = "r"
model = "{folder}/model"
[[stage]]
kind = "grpo"
steps = 1
prompts_per_step = 1
samples_per_prompt = 2
learning_rate = 1e-3
context = 100
data = {{ questions = "{folder}/questions.jsonl" }}
env = {{ kind = "search", dialect = "sleuth", prompt = "{folder}/prompt.txt", index = "{folder}/index" }}
reward = [{{ kind = "answer" }}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_tokenizer(200).save_pretrained(tmp_path / "model")
    question = {"id": "1", "question": "Where?", "golden_answers": ["here"]}
    (tmp_path / "questions.jsonl").write_text(json.dumps(question) + "\n")
    (tmp_path / "prompt.txt").write_text("Question: {question}\n")
    (tmp_path / "recipe.toml").write_text(RECIPE.format(folder=tmp_path))
    return tmp_path


def recipe(folder: Path, *overrides: str) -> Recipe:
    return load_recipe(folder / "recipe.toml", ['stage.0.env.retriever="empty"', *overrides])


def complaint(given: Recipe) -> str:
    with pytest.raises(SleuthError) as caught:
        require_inputs(given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_recipe_that_has_all_it_needs_passes(folder: Path) -> None:
    require_inputs(recipe(folder))


def test_a_missing_index_names_the_stage_and_the_command_that_makes_one(folder: Path) -> None:
    said = complaint(recipe(folder, 'stage.0.env.retriever="index"'))
    assert "stage.0 (grpo)" in said
    assert "sleuth index" in said


def test_missing_questions_name_the_file(folder: Path) -> None:
    (folder / "questions.jsonl").unlink()
    assert "questions.jsonl" in complaint(recipe(folder))


def test_a_question_without_answers_names_its_line(folder: Path) -> None:
    with (folder / "questions.jsonl").open("a") as file:
        file.write(json.dumps({"id": "2", "question": "Where?", "golden_answers": []}) + "\n")
    assert "questions.jsonl:2" in complaint(recipe(folder))


def test_a_model_folder_without_a_tokenizer_is_named(folder: Path) -> None:
    for file in (folder / "model").iterdir():
        file.unlink()
    assert "tokenizer.json" in complaint(recipe(folder))


def test_a_model_folder_that_is_not_there_is_named(folder: Path) -> None:
    assert "no such folder" in complaint(recipe(folder, 'model="runs/nowhere/at/all"'))


def test_a_tokenizer_that_cannot_write_a_tag_is_told_so(folder: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    poor = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    PreTrainedTokenizerFast(tokenizer_object=poor, unk_token="?").save_pretrained(folder / "model")
    assert "<think>" in complaint(recipe(folder))


def test_a_missing_prompt_and_one_without_a_question_are_told_apart(folder: Path) -> None:
    (folder / "prompt.txt").write_text("Answer!")
    assert "{question}" in complaint(recipe(folder))
    (folder / "prompt.txt").unlink()
    assert "prompt.txt" in complaint(recipe(folder))


def test_an_unknown_dialect_names_those_there_are(folder: Path) -> None:
    assert "sleuth, search_r1" in complaint(recipe(folder, 'stage.0.env.dialect="slouth"'))
