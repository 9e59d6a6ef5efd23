"""An evaluate stage of a suite: its files, and resuming after a kill."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from sleuth.recipe import load_recipe
from sleuth.types import SleuthError

ROOT = Path(__file__).parents[2]
RECIPE = """
name = "measured"
model = "{model}"
[[stage]]
kind = "evaluate"
name = "base"
context = 400
data = {{ suite = "{sets}", per_set = 3 }}
env = {{ kind = "search", dialect = "sleuth", prompt = "plain", index = "{world}/index" }}
[[stage]]
kind = "evaluate"
name = "trained"
context = 400
data = {{ suite = "{sets}", per_set = 3 }}
env = {{ kind = "search", dialect = "sleuth", prompt = "plain", index = "{world}/index", forced_search = true }}
"""


@pytest.fixture
def suite_recipe(world: Path, tmp_path: Path) -> Path:
    rows = (world / "qa_test.jsonl").read_text().splitlines(keepends=True)
    for name, part in (("nq", rows[:5]), ("hotpotqa", rows[5:9])):
        (tmp_path / "sets" / name).mkdir(parents=True)
        (tmp_path / "sets" / name / "test.jsonl").write_text("".join(part))
    file = tmp_path / "measured.toml"
    file.write_text(RECIPE.format(model=ROOT / "models" / "tiny-base", sets=tmp_path / "sets", world=world))
    return file


def test_a_suite_writes_a_file_for_each_set_and_resumes_where_it_was_killed(
    suite_recipe: Path, tmp_path: Path, run: Callable[..., Path]
) -> None:
    run(suite_recipe, tmp_path / "run")
    evals = tmp_path / "run" / "eval"
    assert sorted(file.stem for file in evals.glob("base*")) == ["base", "base@hotpotqa", "base@nq"]
    whole = {file.name: file.read_bytes() for file in evals.iterdir()}
    (evals / "base.json").unlink()
    (evals / "base@hotpotqa.json").unlink()
    kept = (evals / "base@nq.json").stat().st_mtime_ns
    run(suite_recipe, tmp_path / "run")
    assert {file.name: file.read_bytes() for file in evals.iterdir()} == whole
    assert (evals / "base@nq.json").stat().st_mtime_ns == kept


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('stage.0.data.questions="q.jsonl"', "stage.0.data.suite and questions are both given; remove one of them"),
        ("stage.0.data.limit=3", "stage.0.data.limit needs a file of questions; for a suite, set per_set"),
        ('stage.0.data.ask_with="prompt"', "stage.0.data.ask_with needs a file of questions"),
    ],
)
def test_keys_of_a_suite_and_of_a_file_cannot_be_mixed(suite_recipe: Path, change: str, message: str) -> None:
    with pytest.raises(SleuthError) as caught:
        load_recipe(suite_recipe, [change])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("per_set = 3", "stage.0.data.questions is missing: name a file of them, or a suite"),
        (
            'questions = "q.jsonl", per_set = 3',
            "stage.0.data.per_set = 3 needs a suite; for a file of questions, set limit",
        ),
    ],
)
def test_a_suite_is_named_where_its_keys_are_used(suite_recipe: Path, data: str, message: str) -> None:
    suite_recipe.write_text(re.sub("suite = .*, per_set = 3", data, suite_recipe.read_text(), count=1))
    with pytest.raises(SleuthError) as caught:
        load_recipe(suite_recipe)
    assert message in str(caught.value)
