"""A policy that never searches is shown how: by what it did right under a hint."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sleuth.cli.app import app
from sleuth.cli.pipeline import run_recipe
from sleuth.recipe import Recipe, load_recipe
from sleuth.runs.run_folder import RunFolder
from sleuth.search.warm_start import Lesson
from sleuth.training.stage_context import StageContext
from sleuth.types import SleuthError

WARM = """
[[stage]]
kind = "warm_start"
hint = { forced_search = true }
below = 1.0
prompts = 24
rows_per_step = 8
steps = 12
learning_rate = 1e-3
"""
SMALL_STAGE = ("stage.2.prompts_per_step=2", "stage.1.samples_per_prompt=8", "stage.2.samples_per_prompt=2")
"""Of what comes after a warm start, little."""


@pytest.fixture
def warm_file(recipe_file: Path) -> Path:
    text = recipe_file.read_text()
    at = text.index('[[stage]]\nkind = "grpo"')
    file = recipe_file.with_name("warm.toml")
    file.write_text(text[:at] + WARM.lstrip() + "\n" + text[at:])
    return file


def lesson(recipe: Recipe, folder: Path) -> Lesson:
    with RunFolder.open(folder, recipe) as place:
        run = StageContext(recipe=recipe, index=1, folder=place, model=recipe.model)
        stage = recipe.stage[1]
        assert stage.kind == "warm_start"
        return Lesson(stage, run)


def texts_of(found: Lesson) -> list[tuple[str, str]]:
    """The text of each row, and what of it is taught."""
    rows = found.rows()
    assert len({row.tokens for row in rows}) == len(rows) >= 8
    return [
        (
            found.tokenizer.decode(row.tokens),
            found.tokenizer.decode([token for token, known in zip(row.tokens, row.trained, strict=True) if known]),
        )
        for row in rows
    ]


def test_what_is_taught_is_what_the_policy_wrote_behind_the_real_prompt_and_is_played_again_where_a_run_goes_on(
    warm_file: Path, tmp_path: Path
) -> None:
    recipe = load_recipe(warm_file)
    rows = texts_of(lesson(recipe, tmp_path / "run"))
    for text, taught in rows:
        assert text.startswith("Question: ")
        assert taught.startswith("<search>")  # which the environment had opened
        assert "<information>" in text
        assert "<information>" not in taught
        assert taught.count("<answer>") == 1
    assert texts_of(lesson(recipe, tmp_path / "again")) == rows


def test_what_was_right_in_a_known_dialect_is_taught_in_the_words_of_the_real_one(
    warm_file: Path, tmp_path: Path
) -> None:
    real = ['stage.1.hint={dialect="sleuth", forced_search=true}', 'stage.2.env.dialect="research"']
    found = lesson(load_recipe(warm_file, [*real, "stage.2.context=900"]), tmp_path / "run")
    for text, taught in texts_of(found):
        assert taught.startswith("<search>")
        assert re.search(r"<answer>\\boxed\{ [^{}]+\}</answer><\|end\|>$", taught)
        assert ' <result>\n"' in text
        assert "<result>" not in taught
        assert "information" not in text
    assert found.protocol.dialect.name == "research"
    short = load_recipe(warm_file, [*real, "stage.2.context=120", "stage.1.prompts=8"])
    with pytest.raises(SleuthError, match="different ones in the real protocol"):
        lesson(short, tmp_path / "short").rows()


def test_the_protocol_alone_is_taught_by_all_that_was_answered(recipe_file: Path, tmp_path: Path) -> None:
    text, at = recipe_file.read_text(), recipe_file.read_text().index('[[stage]]\nkind = "grpo"')
    known = WARM.replace("{ forced_search = true }", '{ dialect = "sleuth" }').lstrip()
    recipe_file.write_text(text[:at] + known + 'taught = "answered"\n\n' + text[at:])
    recipe = load_recipe(recipe_file, ['stage.2.env.dialect="search_r1"', "stage.2.context=600", "stage.1.prompts=8"])
    found = lesson(recipe, tmp_path / "run")
    texts = [found.tokenizer.decode(row.tokens) for row in found.rows()]
    searched = [text for text in texts if "<search>" in text]
    assert 0 < len(searched) < len(texts)  # the base answers from memory, too
    assert all('<information>Doc 1(Title: "' in text or "<information></information>" in text for text in searched)
    assert all(text.count("<answer>") == 1 for text in texts)
    assert "ended with an answer" in found.summary


def test_a_warm_start_teaches_to_search_and_hands_its_checkpoint_on(warm_file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(warm_file, ["stage.2.steps=1", *SMALL_STAGE])
    with RunFolder.open(tmp_path / "run", recipe) as place:
        run_recipe(recipe, place)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if row["stage"] == "warm_start"]
    assert len(losses) == 12
    assert losses[-1] < losses[0]
    base, trained = (
        json.loads((tmp_path / "run" / "eval" / f"{name}.json").read_text()) for name in ("base", "trained")
    )
    assert trained["searched"]["value"] > base["searched"]["value"]
    said = (tmp_path / "run" / "log.txt").read_text()
    assert "under the hint" in said
    assert "another protocol" not in said  # it is taught what the next stage plays


def test_a_policy_that_searches_is_left_as_it_is(warm_file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(warm_file, ["stage.1.below=0.01", "stage.1.prompts=8", "stage.2.steps=1", *SMALL_STAGE])
    with RunFolder.open(tmp_path / "run", recipe) as place:
        run_recipe(recipe, place)
    assert "warm_start is skipped" in (tmp_path / "run" / "log.txt").read_text()
    assert "warm_start" not in (tmp_path / "run" / "metrics.jsonl").read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "stage.1.hint={forced_search=false}",
            "stage.1.hint.prompt is missing: name a prompt that hints, or a dialect that the policy already follows",
        ),
        ('stage.1.hint={dialect="klingon"}', 'stage.1.hint.dialect = "klingon": there is no such dialect'),
        (
            'stage.1.hint={prompt="nowhere"}',
            'stage.1.hint.prompt = "nowhere": no such file, and no prompt of that name',
        ),
    ],
)
def test_a_hint_that_is_none_is_told_before_the_run(warm_file: Path, tmp_path: Path, change: str, said: str) -> None:
    told = CliRunner().invoke(app, ["train", str(warm_file), "--run", str(tmp_path / "run"), "--set", change])
    assert told.exit_code == 2
    assert said in told.stderr


def test_a_warm_start_stands_before_the_stage_that_it_prepares(recipe_file: Path) -> None:
    recipe_file.write_text(recipe_file.read_text() + WARM)
    with pytest.raises(SleuthError, match="needs a grpo stage after it, and there is none"):
        load_recipe(recipe_file)
