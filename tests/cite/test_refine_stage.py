"""A refiner from its rows to its figures: the same stages, the same loop, another environment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sleuth.cli.pipeline import require_inputs
from sleuth.data.questions import load_questions
from sleuth.episodes.protocol import ProtocolCard
from sleuth.evaluation.eval_session import open_eval_session
from sleuth.recipe import load_recipe
from sleuth.runs.rollouts import read_rollouts
from sleuth.types import SleuthError

Run = Callable[..., Path]
ROOT = Path(__file__).parents[2]

RECIPE = """
name = "refiner"
model = "{model}"
seed = 4

[[stage]]
kind = "evaluate"
name = "base"
data = {{ questions = "{world}/refiner_test.jsonl", limit = 4 }}

[[stage]]
kind = "grpo"
steps = 2
prompts_per_step = 2
samples_per_prompt = 4
learning_rate = 1e-3
slots = 8
context = 1024
save_every = 2
probe_prompts = 2
data = {{ questions = "{world}/refiner_train.jsonl" }}
env = {{ kind = "refine", prompt = "bare", turn_tokens = 24 }}
reward = [{{ kind = "citation" }}, {{ kind = "format", weight = 0.1 }}]
"""


@pytest.fixture
def recipe(world: Path, tmp_path: Path) -> Path:
    file = tmp_path / "refiner.toml"
    file.write_text(RECIPE.format(world=world, model=ROOT / "models" / "tiny-base"))
    return file


@pytest.mark.sentinel
def test_a_refiner_trains_and_is_measured_by_its_citations(run: Run, recipe: Path, world: Path, tmp_path: Path) -> None:
    last = run(recipe, tmp_path / "run")
    base = json.loads((tmp_path / "run" / "eval" / "base.json").read_text())
    assert "em" not in base
    assert base["citation_f1"].keys() == {"value", "low", "high", "n"}
    assert (base["missing"]["value"], base["missing"]["n"]) == (0.0, 4)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["em"] for row in rows] == [None, None]
    assert all(0 <= row["padding"] <= 1 for row in rows)
    groups = read_rollouts(tmp_path / "run" / "rollouts" / "step-000001.parquet")
    assert all(group.task.evidence and group.task.evidence.snippets for group in groups)
    card = ProtocolCard.read(last)
    assert card is not None
    assert (card.dialect.name, card.dialect.turn_tokens, card.scorer) == ("refine_answer_only", 24, "lexical 2")
    assert card.reward is not None
    assert card.reward.parts[0].scorer.startswith("lexical 2, sum=recommended, formula=f1, ")


def test_a_refiners_checkpoint_is_asked_as_it_was_trained(run: Run, recipe: Path, world: Path, tmp_path: Path) -> None:
    last = run(recipe, tmp_path / "run")
    tasks = load_questions(world / "refiner_test.jsonl")[:2]
    session, notes = open_eval_session(str(last), tasks, index=None)
    assert notes == []
    assert session.setting.dialect.turn_tokens == 24
    for episode, score in session.ask(tasks, "refine"):
        assert score.value is not None
        assert episode.task.evidence is not None
        assert episode.task.evidence.output in episode.trajectory.text
    with pytest.raises(SleuthError, match="--index is for models that search"):
        open_eval_session(str(last), tasks, index=world / "index")
    with pytest.raises(SleuthError, match=r"has no tool output to refine"):
        open_eval_session(str(last), load_questions(world / "qa_test.jsonl")[:2], index=None)


def test_a_model_without_a_protocol_refines_what_brings_a_tool_output(world: Path) -> None:
    tasks = load_questions(world / "refiner_test.jsonl")[:2]
    session, notes = open_eval_session(str(ROOT / "models" / "tiny-base"), tasks, index=None, prompt="bare")
    assert session.setting.dialect.name == "refine_answer_only"
    assert "asked in the dialect 'refine_answer_only'" in notes[0]


def test_rows_of_the_wrong_kind_stop_the_run_before_its_first_step(recipe: Path, world: Path) -> None:
    questions = f"stage.1.data.questions={world}/qa_train.jsonl"
    with pytest.raises(SleuthError, match="has no tool output to refine"):
        require_inputs(load_recipe(recipe, [questions]))
    search = "stage.1.env={kind='search', dialect='sleuth', prompt='plain', retriever='empty'}"
    with pytest.raises(SleuthError, match="has no golden answers to compare"):
        require_inputs(load_recipe(recipe, [search, "stage.1.reward=[{kind='answer'}]"]))


def test_an_answer_that_nobody_could_judge_is_refused_unless_citations_alone_are_paid(
    recipe: Path, world: Path, tmp_path: Path
) -> None:
    row = {"id": "1", "question": "?", "tool_output": "<snippet id=a>x</snippet>"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    rows = f"stage.1.data.questions={tmp_path}/rows.jsonl"
    with pytest.raises(SleuthError, match=r"stage\.1 \(grpo\): question '1' has no golden answers"):
        require_inputs(load_recipe(recipe, [rows]))
    require_inputs(load_recipe(recipe, [rows, "stage.1.reward.0.content=none"]))
