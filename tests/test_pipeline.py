"""Inputs that a run would miss later are refused before its first step, in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import get_args

import pytest

from sleuth.factories import random_model
from sleuth.pipeline import STAGES, require_inputs, run_recipe
from sleuth.recipe import InitRecipe, Recipe, load_recipe
from sleuth.recipe.recipe import StageRecipe
from sleuth.runs.run_folder import RunFolder
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
context = 128
data = {{ questions = "{folder}/questions.jsonl" }}
env = {{ kind = "search", dialect = "sleuth", prompt = "{folder}/prompt.txt", index = "{folder}/index" }}
reward = [{{ kind = "answer" }}]
"""


INIT = InitRecipe(layers=1, width=8, heads=1, kv_heads=1, head_dim=8, mlp=8, context=128)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, tokenizer = tmp_path_factory.mktemp("model"), make_tokenizer(200)
    random_model(INIT, tokenizer, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    shutil.copytree(model, tmp_path / "model")
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


def test_every_kind_of_stage_has_a_row_in_the_table() -> None:
    kinds = {get_args(kind.model_fields["kind"].annotation)[0] for kind in get_args(get_args(StageRecipe)[0])}
    assert STAGES.keys() == kinds


def test_a_recipe_with_all_its_inputs_passes(folder: Path) -> None:
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


def test_a_missing_model_folder_is_named(folder: Path) -> None:
    assert "no such folder" in complaint(recipe(folder, 'model="runs/nowhere/at/all"'))


def test_a_tokenizer_that_cannot_write_a_tag_is_refused(folder: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    poor = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    PreTrainedTokenizerFast(tokenizer_object=poor, unk_token="?").save_pretrained(folder / "model")
    assert "<think>" in complaint(recipe(folder))


def test_a_missing_prompt_and_one_without_a_question_have_different_messages(folder: Path) -> None:
    (folder / "prompt.txt").write_text("Answer!")
    assert "{question}" in complaint(recipe(folder))
    (folder / "prompt.txt").unlink()
    assert "prompt.txt" in complaint(recipe(folder))


def test_the_message_on_an_unknown_dialect_lists_the_known_ones(folder: Path) -> None:
    assert "sleuth, search_r1" in complaint(recipe(folder, 'stage.0.env.dialect="slouth"'))


def test_a_context_beyond_the_models_positions_is_refused_before_the_first_step(folder: Path) -> None:
    said = complaint(recipe(folder, "stage.0.context=129"))
    assert said == "stage.0 (grpo): context = 129 is more than the 128 positions of the model"


RANDOM_FIRST = """
[[stage]]
kind = "supervised"
steps = 1
rows_per_step = 1
learning_rate = 1e-3
data = { kind = "world_text", people = 200, mix = { reading = 1 } }
init = { layers = 1, width = 8, heads = 1, kv_heads = 1, head_dim = 8, mlp = 8, context = 64 }
"""


def test_a_context_beyond_the_positions_of_random_weights_is_refused_too(folder: Path) -> None:
    text = (folder / "recipe.toml").read_text().replace(f'model = "{folder}/model"\n', RANDOM_FIRST)
    (folder / "recipe.toml").write_text(text)
    given = load_recipe(folder / "recipe.toml", ['stage.1.env.retriever="empty"'])
    assert complaint(given) == "stage.1 (grpo): context = 128 is more than the 64 positions of the model"


def test_a_question_whose_prompt_leaves_no_room_for_a_turn_is_named(folder: Path) -> None:
    with (folder / "questions.jsonl").open("a") as file:
        for name, words in (("long", 90), ("short", 3)):
            question = {"id": name, "question": "1 " * words, "golden_answers": ["x"]}
            file.write(json.dumps(question) + "\n")
    said = complaint(recipe(folder))
    assert said == (
        "stage.0 (grpo): row 2 ('long') of 3: a prompt of 183 tokens and turn_tokens = 64 do not fit in context = 128; "
        'raise context, lower env.turn_tokens, or set data.too_long = "skip"'
    )
    with pytest.raises(SleuthError, match="a prompt of 5 tokens and turn_tokens = 124 "):
        require_inputs(recipe(folder, "stage.0.env.turn_tokens=124", "stage.0.data.limit=1"))
    require_inputs(recipe(folder, "stage.0.env.turn_tokens=123", "stage.0.data.limit=1"))


def test_all_rows_that_are_too_long_are_counted_and_the_first_five_named(folder: Path) -> None:
    with (folder / "questions.jsonl").open("a") as file:
        for number in range(2, 302):  # more than are counted first
            words = 3 if number in (2, 5) else 40
            file.write(json.dumps({"id": f"q{number}", "question": "1 " * words, "golden_answers": ["x"]}) + "\n")
    said = complaint(recipe(folder))
    named = "row 3 ('q3'), row 4 ('q4'), row 6 ('q6'), row 7 ('q7'), row 8 ('q8') and 293 more of 301"
    assert said.startswith(f"stage.0 (grpo): {named}: a prompt of 83 tokens and turn_tokens = 64 do not fit")
    kept = require_inputs(recipe(folder, 'stage.0.data.too_long="skip"'))[0]
    assert [task.id for task in kept] == ["1", "q2", "q5"]


def test_a_stage_that_would_skip_every_row_is_refused(folder: Path) -> None:
    said = complaint(recipe(folder, 'stage.0.data.too_long="skip"', "stage.0.env.turn_tokens=126"))
    assert said == 'stage.0 (grpo): all 1 rows are too long for context = 128, and data.too_long = "skip"'


def test_malformed_rows_are_counted_and_the_first_five_named(folder: Path) -> None:
    with (folder / "questions.jsonl").open("a") as file:
        file.write('{"id": "2"}\n' * 6 + '{"id": "1", "question": "Where?", "golden_answers": ["x"]}\n')
    with pytest.raises(SleuthError) as caught:
        require_inputs(recipe(folder))
    places = [f"stage.0 (grpo): {folder}/questions.jsonl:{row}: no `question`; the row has id" for row in range(2, 7)]
    more = f"{folder}/questions.jsonl: 7 of 8 rows have a problem"
    assert list(caught.value.args[:5]) == places
    assert caught.value.args[5].startswith(f"stage.0 (grpo): {more}")


EVALUATION = """
[[stage]]
kind = "evaluate"
name = "base"
data = {{ questions = "{folder}/other.jsonl" }}
"""


def test_an_evaluation_is_checked_in_the_env_and_context_of_the_stage_before_it(folder: Path) -> None:
    question = {"id": "long", "question": "1 " * 90, "golden_answers": ["x"]}
    (folder / "other.jsonl").write_text(json.dumps(question) + "\n")
    with (folder / "recipe.toml").open("a") as file:
        file.write(EVALUATION.format(folder=folder))
    assert complaint(recipe(folder)).startswith("stage.1 (base): row 1 ('long') of 1: a prompt of ")
    assert "stage.1 (base): context = 200" in complaint(recipe(folder, "stage.1.context=200"))


def test_missing_or_damaged_weights_are_refused_before_the_first_step(folder: Path) -> None:
    weights = folder / "model" / "model.safetensors"
    whole = weights.read_bytes()
    for contents in (whole[: len(whole) // 2], b"garbage"):
        weights.write_bytes(contents)
        assert f"{folder}/model: no model could be loaded" in complaint(recipe(folder))
    weights.unlink()
    assert f"{folder}/model: no model could be loaded" in complaint(recipe(folder))


def test_questions_both_trained_and_evaluated_are_reported_before_the_run_and_recorded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = [{"id": str(at), "question": f"Where is {at}?", "golden_answers": ["here"]} for at in range(4)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions[:3]))
    asked = [questions[2] | {"id": "x", "question": "where is 2"}, questions[3]]
    (folder / "asked.jsonl").write_text("".join(json.dumps(question) + "\n" for question in asked))
    with (folder / "recipe.toml").open("a") as file:
        file.write(f'[[stage]]\nkind = "evaluate"\nname = "after"\ndata = {{ questions = "{folder}/asked.jsonl" }}\n')
    given = recipe(folder)
    with RunFolder.open(folder / "run", given) as place:
        last = run_recipe(given, place)
        assert place.manifest.read()["overlap"] == [{"train": "grpo", "test": "after", "shared": 1, "of": 2}]
    sentence = "1 of the 2 questions of after are also trained on, in stage grpo"
    assert sentence in capsys.readouterr().err
    assert "1 of the 2 questions of `after` are also trained on" in (last / "README.md").read_text()
