"""The examples of "The second idea" in docs/how-to/own_code.md run, and have the lines that its table counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from run_files import rows
from verb import sleuth, write_rows

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs/how-to/own_code.md").read_text().partition("## The second idea")[2].partition("\n## ")[0]
PYTHON = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", SECTION, re.DOTALL))
TOML = re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL)
BLOCKS = {
    "a metric": ("my_metrics", "my_metrics:turns"),
    "a schedule of the KL weight": (None, "{ 0 = 0.05"),
    "the same by the figures of the run": ("my_schedules", "my_schedules:gentle"),
    "a batch-wide advantage": ("my_advantages", "my_advantages:"),
    "a curriculum": ("my_questions", "my_questions:sums"),
    "a stream of rows": ("my_stream", "my_stream:lines"),
}
ENV = """
from sleuth.types import Action, Piece, Reply


class Asking:
    def __init__(self, task):
        self.question = task.question

    async def open(self):
        return Reply(pieces=(Piece(text=self.question),), max_tokens=4)

    async def reply(self, text, stop):
        return Reply(action=Action(kind="answer", text=text), done="answered")


def short(episode):
    return -float(len(episode.trajectory.policy_text))
"""
RECIPE = """
name = "ideas"
model = "{model}"

[[stage]]
kind = "grpo"
steps = 2
prompts_per_step = 2
samples_per_prompt = 4
probe_prompts = 0
learning_rate = 1e-3
context = 64
env = {{ kind = "python", function = "asking:Asking" }}

[[stage.reward]]
kind = "python"
function = "asking:short"
"""


def lines(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())


def toml_of(idea: str) -> str:
    return next(block for block in TOML if BLOCKS[idea][1] in block)


@pytest.mark.parametrize("idea", BLOCKS)
def test_the_table_counts_the_lines_of_each_idea(idea: str) -> None:
    module, _ = BLOCKS[idea]
    counted = re.search(rf"\| {re.escape(idea)} \| (\d+) \| (\d+) \|", SECTION)
    assert counted is not None
    python = lines(PYTHON[module]) if module else 0
    assert (int(counted[1]), int(counted[2])) == (python, lines(toml_of(idea)))


def written(folder: Path, *ideas: str) -> Path:
    """A recipe of these blocks beside their files, as a reader would write it."""
    (folder / "asking.py").write_text(ENV)
    write_rows(folder / "rows.jsonl", [{"question": f"Question {at}?"} for at in range(20)])
    for name, text in PYTHON.items():
        (folder / f"{name}.py").write_text(text)
    file = folder / "ideas.toml"
    blocks = "\n".join(toml_of(idea) for idea in ideas).replace('"rows.jsonl"', f'"{folder}/rows.jsonl"')
    file.write_text(RECIPE.format(model=ROOT / "models/tiny-base") + blocks)
    return file


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["a schedule of the KL weight", "the same by the figures of the run"])
@pytest.mark.parametrize("data", ["a curriculum", "a stream of rows"])
def test_the_blocks_pass_the_check_of_a_recipe(tmp_path: Path, schedule: str, data: str) -> None:
    checked = sleuth("check", "recipe", written(tmp_path, "a metric", schedule, data))
    assert checked.exit_code == 0, checked.stderr


@pytest.mark.slow
def test_the_blocks_train_together(tmp_path: Path) -> None:
    recipe = written(tmp_path, "a metric", "a batch-wide advantage", "a curriculum")
    trained = sleuth("train", recipe, "--set", "grpo.loss.beta=my_schedules:gentle", "--run", tmp_path / "run")
    assert trained.exit_code == 0, trained.stderr
    first, second = rows(tmp_path / "run")
    assert (first["score_turns"], first["beta"], second["beta"]) == (1.0, 0.001, 0.001)
    assert first["reward_mean"] < 0
