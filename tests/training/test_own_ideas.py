"""GRPO runs with rows, metrics, advantages, schedules and questions of one's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import refused
from run_files import evaluation, figures, groups, weights
from verb import sleuth, write_rows

Run = Callable[..., Path]
BASE = Path(__file__).parents[2] / "models" / "tiny-base"

CODE = """
from sleuth.types import Action, Episode, Piece, Reply, Task

class Writing:
    def __init__(self, task: Task) -> None:
        self.task = task

    async def open(self) -> Reply:
        return Reply(pieces=(Piece(text=self.task.info["words"][0] + "\\n"),), max_tokens=6)

    async def reply(self, text, stop) -> Reply:
        return Reply(action=Action(kind="answer", text=text), done="answered")

def written(episode: Episode) -> list[int]:
    return [token for one in episode.whole.segments if one.author == "policy" for token in one.tokens]

def even(episode: Episode) -> float:
    return sum(token % 2 == 0 for token in written(episode)) / 6 * episode.task.info["level"]
"""
ROWS = [{"question": f"Question {at}?", "level": at % 3 + 1, "words": [f"word {at}"]} for at in range(8)]
RECIPE = """
name = "ideas"
model = "{model}"

[[stage]]
kind = "grpo"
steps = 4
save_every = 2
prompts_per_step = 2
samples_per_prompt = 4
probe_prompts = 0
learning_rate = 1e-3
context = 64
data = {{ questions = "{rows}" }}
env = {{ kind = "python", function = "ideas:Writing" }}
reward = [{{ kind = "python", function = "ideas:even" }}]

[[stage]]
kind = "evaluate"
name = "trained"
data = {{ questions = "{rows}", limit = 2 }}
"""
SHORT = "grpo.stop_after=2"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe beside code of the user and rows without golden answers."""
    (tmp_path / "ideas.py").write_text(CODE)
    file = tmp_path / "ideas.toml"
    file.write_text(RECIPE.format(model=BASE, rows=write_rows(tmp_path / "rows.jsonl", ROWS)))
    return file


def own(recipe: Path, code: str) -> None:
    """Adds to the user's code."""
    with (recipe.parent / "ideas.py").open("a") as file:
        file.write(code)


@pytest.mark.slow
def test_rows_without_answers_reach_environment_reward_and_rescoring_with_all_their_columns(run, recipe, tmp_path):
    whole = run(recipe, tmp_path / "whole")
    played = groups(tmp_path / "whole")
    assert {group.task.golden_answers for group in played} == {()}
    for group in played:
        assert group.episodes[0].trajectory.segments[0].text == group.task.info["words"][0] + "\n"
        evens = [sum(token % 2 == 0 for token in one.trajectory.segments[1].tokens) for one in group.episodes]
        assert [score.value for score in group.scores] == [n / 6 * group.task.info["level"] for n in evens]
    trained = evaluation(tmp_path / "whole", "trained")
    assert (trained["score"]["n"], trained["missing"]["value"], trained["headline"][0]) == (2, 0.0, "score")
    assert "em" not in trained or trained["em"]["n"] == 0
    run(recipe, tmp_path / "parts", SHORT)
    assert weights(run(recipe, tmp_path / "parts")) == weights(whole)
    assert figures(tmp_path / "parts") == figures(tmp_path / "whole")
    (tmp_path / "new.toml").write_text('[[reward]]\nkind = "python"\nfunction = "ideas:even"\n')
    rescored = sleuth("rescore", tmp_path / "whole", "--reward", tmp_path / "new.toml", "--json")
    assert rescored.exit_code == 0, rescored.stderr
    [stage] = json.loads(rescored.stdout)["stages"]
    assert (stage["within"]["value"], stage["after"]["missing"]) == (1.0, 0)


def test_a_reward_that_needs_golden_answers_is_named_before_the_run(recipe):
    answer = "grpo.reward=[{ kind = 'python', function = 'ideas:even' }, { kind = 'token_f1', weight = 0.5 }]"
    assert refused(recipe, answer) == (
        "stage.0 (grpo): question 'row_1' has no golden_answers, and the token_f1 reward needs them; expected a list "
        'such as ["Tarn"], or an `answer`; its other columns are level, words'
    )
