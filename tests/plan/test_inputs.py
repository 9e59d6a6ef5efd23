"""What a recipe names, looked for before its run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sleuth.recipe import GrpoRecipe, load_recipe
from sleuth.recipe.sweep import load_sweep
from sleuth.terminal.recipe_inputs import missing_inputs, require_named
from sleuth.types import SleuthError

RECIPE = """
name = "r"
model = "model"

[[stage]]
kind = "evaluate"
name = "base"
data = { suite = "sets" }

[[stage]]
kind = "grpo"
steps = 2
prompts_per_step = 1
samples_per_prompt = 2
learning_rate = 1e-3
context = 128
data = { questions = "q.jsonl" }
env = { kind = "search", dialect = "sleuth", prompt = "plain", index = "index" }
reward = [{ kind = "answer" }]

[[stage]]
kind = "win_rate"
name = "after"
data = { kind = "text", texts = "texts" }
judge = "ending"
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe with all that it names in the working directory."""
    monkeypatch.chdir(tmp_path)
    for folder in ("model", "sets/nq", "index", "texts"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("q.jsonl", "sets/nq/test.jsonl"):
        (tmp_path / file).touch()
    card = {"kind": "bm25", "count": 1, "corpus_sha256": "a", "layout": 1, "library": "tantivy"}
    (tmp_path / "index" / "card.json").write_text(json.dumps(card))
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return Path("recipe.toml")


def test_a_tracker_that_is_not_installed_is_missing_as_a_file_is(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in ("wandb", "tensorboard"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "wandb").mkdir()  # of runs
    (tmp_path / "tensorboard.py").touch()
    assert problems(recipe, 'trackers=["wandb", "tensorboard"]') == [
        '--set trackers=["wandb", "tensorboard"]: trackers = ["wandb", "tensorboard"]: wandb is not installed; '
        'pip install "sleuth[trackers]"'
    ]
    load_recipe(recipe, ['trackers=["tensorboard"]'], missing_inputs)


def problems(recipe: Path, *overrides: str) -> list[str]:
    with pytest.raises(SleuthError) as caught:
        load_recipe(recipe, overrides, missing_inputs)
    return [problem.removeprefix(f"{recipe}: ") for problem in caught.value.args]


def test_everything_that_is_missing_is_told_at_once_beside_what_does_not_fit(recipe: Path, tmp_path: Path) -> None:
    for folder in ("model", "texts"):
        (tmp_path / folder).rmdir()
    for file in ("index/card.json", "q.jsonl", "sets/nq/test.jsonl"):
        (tmp_path / file).unlink()
    assert problems(recipe, "stage.1.stop_after=3") == [
        "--set stage.1.stop_after=3: stage.1.stop_after = 3 is beyond steps = 2",
        f'model = "model": no such folder here (from {tmp_path}), and a hub id would read OWNER/NAME',
        'stage.0.data.suite = "sets": holds no test sets; should be a folder with a folder for each, such as '
        "nq/test.jsonl, or a suite by name: seven, nq_hotpotqa",
        'stage.1.data.questions = "q.jsonl": no such file',
        'stage.1.env.index = "index": no index here; make one with `sleuth index CORPUS index`',
        'stage.2.data.texts = "texts": no such file or folder',
    ]


CLOSED = 'stage.0.env={ kind = "search", dialect = "chat", prompt = "plain", prompt_role = "user", closed_book = true }'


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (CLOSED, "closed_book = true: a turn in the dialect 'chat' is a whole message"),
        ("stage.1.env.dialect=sluth", 'dialect = "sluth": there is no such dialect; there are sleuth, '),
        ("stage.1.env.dialect=chat", 'dialect = "chat": prompt_role = "raw": the dialect \'chat\' needs messages'),
        ("stage.1.env.prompt=nope", 'prompt = "nope": no such file, and no prompt of that name; there are bare, '),
        ("stage.1.env.prompt=q.jsonl", 'prompt = "q.jsonl": q: the prompt has no {question}'),
        ("stage.1.env.hint=nope", "hint = \"nope\": prompt = 'nope': no such file"),
    ],
)
def test_a_word_that_names_nothing_is_told_with_its_key(recipe: Path, override: str, problem: str) -> None:
    [told] = problems(recipe, override)
    assert told.startswith(f"--set {override}: stage.")
    assert problem in told


@pytest.mark.parametrize(
    "override",
    [
        "stage.0.data.suite=seven",
        "stage.1.data.questions=hf://OWNER/NAME/test.jsonl",
        "stage.1.env.retriever=empty",
        'stage.0.env={ kind = "search", dialect = "sleuth", prompt = "plain", index = "none", closed_book = true }',
    ],
)
def test_what_lies_on_the_hub_or_is_not_read_is_not_looked_for(recipe: Path, tmp_path: Path, override: str) -> None:
    for file in ("index/card.json", "q.jsonl", "sets/nq/test.jsonl"):
        (tmp_path / file).unlink()
    key = override.partition("=")[0].replace("retriever", "index").replace("stage.0.env", "stage.0.env.index")
    told = problems(recipe, override)
    assert told
    assert not [problem for problem in told if key in problem]


def test_the_stage_that_a_verb_does_by_itself_needs_only_its_own_inputs(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "model").rmdir()
    (tmp_path / "q.jsonl").unlink()
    evaluate, train, _ = load_recipe(recipe).stage
    require_named(evaluate, "recipe.toml", ("stage", 0))
    with pytest.raises(SleuthError, match=r'^recipe.toml: stage.1.data.questions = "q.jsonl": no such file$'):
        require_named(train, "recipe.toml", ("stage", 1))
    assert isinstance(train, GrpoRecipe)


def test_what_several_arms_lack_is_told_of_the_first(recipe: Path, tmp_path: Path) -> None:
    arms = 'name = "two"\nmodel = "model"\ntable = { evaluation = "after", figures = ["win_rate"] }\n'
    for name, stages in (("one", '"recipe.toml:after"'), ("two", '"recipe.toml:grpo", "recipe.toml:after"')):
        arms += f'[[arm]]\nname = "{name}"\nstages = [{stages}]\n'
    (tmp_path / "arms.toml").write_text(arms)
    (tmp_path / "texts").rmdir()
    (tmp_path / "q.jsonl").unlink()
    load_sweep("arms.toml")
    with pytest.raises(SleuthError) as caught:
        load_sweep("arms.toml", (), missing_inputs, only=["one"])
    assert caught.value.args == ('arms.toml: arm "one": stage.0.data.texts = "texts": no such file or folder',)
    with pytest.raises(SleuthError) as caught:
        load_sweep("arms.toml", (), missing_inputs)
    assert caught.value.args == (
        'arms.toml: arm "one": stage.0.data.texts = "texts": no such file or folder',
        'arms.toml: arm "two": stage.0.data.questions = "q.jsonl": no such file',
        'arms.toml: arm "two": stage.1.data.texts = "texts": no such file or folder',
    )
