"""Rows that bring answers are taught as an environment asks them; rows to refine come out of what was played."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from refusals import refused
from run_files import figures
from verb import sleuth

from sleuth.cli.pipeline import run_recipe
from sleuth.data.questions import load_questions
from sleuth.episodes.protocol import ProtocolCard
from sleuth.evaluation.eval_session import open_eval_session
from sleuth.recipe import load_recipe
from sleuth.render import load_tokenizer
from sleuth.runs.run_folder import RunFolder

BASE = Path(__file__).parents[2] / "models" / "tiny-base"

ROWS = [
    {
        "id": str(at),
        "question": f"Where was {name} born?",
        "tool_output": f"<snippet id={at}> {name} was born in {town}.</snippet>",
        "golden_answers": [town],
        "answerable": True,
        "answer": f"<answer><snippet id={at}> {name} was born in {town}.</snippet></answer>",
    }
    for at, (name, town) in enumerate([("Ada", "Tamton"), ("Ida", "Ulfmore")])
]
RECIPE = """
name = "taught"
model = "{model}"
seed = 1

[[stage]]
kind = "supervised"
steps = {steps}
rows_per_step = 2
learning_rate = 3e-3
tokens = ["<snippet id=", "</snippet>", "<tool_output>", "</tool_output>"]
data = {{ kind = "rows", questions = "{rows}" }}
env = {{ kind = "refine", prompt = "bare", turn_tokens = 60 }}
"""
STEPS = 40


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("taught")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    file = folder / "taught.toml"
    file.write_text(RECIPE.format(rows=folder / "rows.jsonl", model=BASE, steps=STEPS))
    return file


@pytest.fixture(scope="module")
def taught(recipe) -> Path:
    """The last checkpoint of a run."""
    resolved = load_recipe(recipe)
    with RunFolder.open(recipe.parent / "run", resolved) as place:
        return run_recipe(resolved, place)


def test_what_rows_answer_is_learned_and_the_checkpoint_knows_how_it_is_asked(recipe, taught):
    first, *_, last = figures(recipe.parent / "run")
    assert last["loss"] < first["loss"] / 10
    card = ProtocolCard.read(taught)
    assert card is not None
    assert (card.dialect.name, card.dialect.turn_tokens, card.prompt) == ("refine_answer_only", 60, "bare")
    tokenizer = load_tokenizer(str(taught))
    assert len(tokenizer.encode("<snippet id=", add_special_tokens=False)) == 1
    tasks = load_questions(recipe.parent / "rows.jsonl")
    session, notes = open_eval_session(str(taught), tasks, index=None)
    assert (notes, session.context) == ([], 1024)
    assert [score.value for _, score in session.ask(tasks, "refine")] == [1.0, 1.0]


def test_rows_that_cannot_be_taught_stop_the_run_before_its_first_step(recipe, tmp_path):
    said = refused(recipe, "stage.0.env.turn_tokens=20")
    assert "row 1 ('0'), row 2 ('1') of 2: an answer of " in said
    mute = {"id": "m", "question": "?", "tool_output": "<snippet id=a>x</snippet>"}
    (tmp_path / "mute.jsonl").write_text(json.dumps(mute) + "\n")
    said = refused(recipe, f"stage.0.data.questions={tmp_path}/mute.jsonl")
    assert said.startswith("stage.0 (supervised): ")
    assert "row 1 ('m') of 1: no `answer`" in said
    init = "stage.0.init={layers=1, width=8, heads=1, kv_heads=1, head_dim=8, mlp=8, context=16}"
    assert "init can build a tokenizer only for" in refused(recipe, init)
    no_env = tmp_path / "no_env.toml"
    no_env.write_text("\n".join(line for line in recipe.read_text().splitlines() if not line.startswith("env")))
    assert "stage.0.env is missing" in refused(no_env)


def test_what_a_search_agent_found_becomes_rows_to_refine_with_a_card(world, tmp_path):
    rows = tmp_path / "kept" / "rows.jsonl"
    asked = ("eval", BASE, "--questions", world / "qa_train.jsonl", "--limit", 8, "--index", world / "index")
    result = sleuth(*asked, "--prompt", "plain", "--forced-search", "--rows", rows)
    assert result.exit_code == 0, result.output
    tasks = load_questions(rows)
    assert tasks
    assert all(task.evidence and task.evidence.snippets for task in tasks)
    card = rows.with_suffix(".md").read_text()
    assert f"{len(tasks)} rows to refine" in card
    assert "| episodes | 8 |" in card
    again = sleuth(*asked, "--rows", rows)
    assert (again.exit_code, "exists; name a new file" in again.output) == (2, True)


def test_a_refiners_answers_are_kept_where_they_pass(recipe, taught, tmp_path):
    rows = tmp_path / "accepted.jsonl"
    questions = ("--questions", recipe.parent / "rows.jsonl")
    result = sleuth("eval", taught, *questions, "--rows", rows)
    assert result.exit_code == 0, result.output
    assert [task.reference for task in load_questions(rows)] == [row["answer"] for row in ROWS]
    card = rows.with_suffix(".md").read_text()
    assert "1.000 (0.342 to 1.000) of the episodes: well formed, citation F1 of 0.8 or more, and right" in card
    none = ("--prompt", "bare", "--context", 256, "--rows", tmp_path / "none.jsonl")
    result = sleuth("eval", BASE, *questions, *none)
    assert (result.exit_code, "so there is nothing to write" in result.output) == (2, True)
