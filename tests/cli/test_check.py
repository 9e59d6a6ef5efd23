"""`sleuth check recipe` and `sleuth check protocols`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from verb import sleuth

from sleuth.dialect import DIALECTS
from sleuth.episodes.protocol import ProtocolCard, text_sha256

BASE = Path(__file__).parents[2] / "models" / "tiny-base"
PROMPT = "Asked: {question}\n"
CARD = ProtocolCard(
    dialect=DIALECTS["sleuth"],
    prompt="mine",
    prompt_text=PROMPT,
    prompt_sha256=text_sha256(PROMPT),
    context=200,
    scorer="strict",
    sleuth_version="0",
)
RECIPE = """
name = "r"
model = "{folder}/model"
[[stage]]
kind = "evaluate"
name = "base"
data = {{ questions = "{folder}/q.jsonl" }}
[[stage]]
kind = "grpo"
steps = 1200
stop_after = 1100
prompts_per_step = 1
samples_per_prompt = 2
learning_rate = 1e-3
context = 128
data = {{ questions = "{folder}/q.jsonl" }}
env = {{ kind = "search", dialect = "sleuth", prompt = "{folder}/prompt.txt", retriever = "empty" }}
reward = [{{ kind = "answer" }}]
"""


def complaint(*arguments: object) -> str:
    result = sleuth("check", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints `a`, `same` and `b`, a recipe, and a file that is neither."""
    others = {"a": CARD, "same": CARD, "b": CARD.model_copy(update={"context": 512, "scorer": "loose"})}
    for name, card in others.items():
        (tmp_path / name).mkdir()
        card.write(tmp_path / name)
    (tmp_path / "q.jsonl").write_text('{"id": "1", "question": "Where?", "golden_answers": ["here"]}\n')
    (tmp_path / "prompt.txt").write_text("Question: {question}\n")
    (tmp_path / "recipe.toml").write_text(RECIPE.format(folder=tmp_path))
    shutil.copytree(BASE, tmp_path / "model")
    return tmp_path


def test_the_differences_of_two_protocols_are_printed_one_per_line(folder: Path) -> None:
    result = sleuth("check", "protocols", folder / "a", folder / "b")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"A is {folder / 'a'}",
        f"B is {folder / 'b'}",
        "context: A 200, B 512",
        "scorer: A `strict`, B `loose`",
    ]


def test_equal_protocols_are_reported_as_equal(folder: Path) -> None:
    result = sleuth("check", "protocols", folder / "a", folder / "same")
    assert (result.exit_code, result.stdout) == (0, "the protocols are the same\n")


def test_json_is_one_object_and_nothing_else(folder: Path) -> None:
    assert json.loads(sleuth("check", "protocols", folder / "a", folder / "same", "--json").stdout) == {
        "same": True,
        "differences": [],
    }
    result = sleuth("check", "protocols", folder / "a", folder / "b", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["same"], len(found["differences"])) == (False, 2)
    assert json.loads(sleuth("check", "recipe", folder / "recipe.toml", "--json").stdout) == {
        "ok": True,
        "stages": 2,
        "steps": 1100,
    }


def test_a_folder_without_a_protocol_is_refused_with_an_example_of_one(folder: Path) -> None:
    for wrong in ("model", "q.jsonl", "nowhere"):
        for pair in ((folder / "a", folder / wrong), (folder / wrong, folder / "a")):
            said = complaint("protocols", *pair)
            assert f"{folder / wrong}: not a checkpoint with a protocol: it has no protocol.json" in said
            assert "RUN/checkpoints/step-000100" in said


def test_a_run_instead_of_a_checkpoint_is_refused_with_its_last_one(folder: Path) -> None:
    last = folder / "run" / "checkpoints" / "step-000020"
    last.mkdir(parents=True)
    last.with_name("step-000010").mkdir()
    assert complaint("protocols", folder / "run", folder / "a").endswith(f"this run's last one is {last}\n")


def test_a_broken_protocol_file_is_named(folder: Path) -> None:
    (folder / "a" / "protocol.json").write_text("{")
    assert "protocol.json: " in complaint("protocols", folder / "a", folder / "b")


def test_one_checkpoint_alone_asks_for_another(folder: Path) -> None:
    assert "missing argument 'B'" in complaint("protocols", folder / "a")


def test_a_missing_file_and_a_sweep_are_not_recipes(folder: Path) -> None:
    assert "nowhere.toml: no such recipe" in complaint("recipe", folder / "nowhere.toml")
    (folder / "sweep.toml").write_text('name = "s"\n[[arm]]\nname = "a"\nstages = ["recipe.toml:grpo"]\n')
    assert "has arms, which are several runs" in complaint("recipe", folder / "sweep.toml")


def test_a_complete_recipe_is_ok_with_its_number_of_steps(folder: Path) -> None:
    result = sleuth("check", "recipe", folder / "recipe.toml")
    assert (result.exit_code, result.stdout) == (0, "ok: 2 stages, 1,100 steps\n")


def test_a_scorer_that_no_right_answer_satisfies_is_a_warning(folder: Path) -> None:
    (folder / "recipe.toml").write_text(
        RECIPE.format(folder=folder).replace('"answer" }', '"answer", scorer = "slime" }')
    )
    result = sleuth("check", "recipe", folder / "recipe.toml")
    assert result.exit_code == 0
    assert "warning: stage.1 (grpo): the scorer slime would pay a well-formed right answer 0, not 1" in result.stdout
    told = json.loads(sleuth("check", "recipe", folder / "recipe.toml", "--json").stdout)
    assert told["warnings"][0].startswith("stage.1 (grpo): the scorer slime")


def test_a_recipe_that_cannot_run_is_refused_with_the_key(folder: Path) -> None:
    (folder / "prompt.txt").write_text("Question:\n")
    assert "stage.1.env.prompt = " in complaint("recipe", folder / "recipe.toml")
    (folder / "prompt.txt").write_text("Question: {question}\n")
    (folder / "recipe.toml").write_text(RECIPE.format(folder=folder).replace("steps = 1200", "stpes = 1200"))
    assert "stage.1.stpes is no key here" in complaint("recipe", folder / "recipe.toml")
