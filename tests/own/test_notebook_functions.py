"""Functions that the cells of a notebook define, in a real IPython: no file of theirs is written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CELLS = """
from pathlib import Path
from sleuth.cli.pipeline import require_inputs, run_recipe
from sleuth.recipe import Recipe
from sleuth.runs.run_folder import RunFolder
from sleuth.types import Action, Episode, Piece, Reply, SleuthError

class Asking:
    def __init__(self, task):
        self.question = task.question
    async def open(self):
        return Reply(pieces=(Piece(text=self.question),), max_tokens=4)
    async def reply(self, text, stop):
        return Reply(action=Action(kind="answer", text=text), done="answered")

def short(episode: Episode) -> float:
    return {reward}

def questions():
    yield from ({{"question": f"Question {{at}}?"}} for at in range(20))

stage = {{
    "kind": "grpo", "steps": 3, "stop_after": {steps}, "prompts_per_step": 2, "samples_per_prompt": 4,
    "probe_prompts": 0, "learning_rate": 1e-3, "context": 64,
    "data": {{"kind": "python", "function": "__main__:questions"}},
    "env": {{"kind": "python", "function": "__main__:Asking"}},
    "reward": [{{"kind": "python", "function": "__main__:short"}}],
}}

try:
    recipe = Recipe.model_validate({{"name": "notebook", "model": "{model}", "stage": [stage]}})
    require_inputs(recipe)
    with RunFolder.open(Path("run"), recipe) as folder:
        print("LAST", run_recipe(recipe, folder))
except SleuthError as error:
    print("ERROR", error)

"""


def notebook(folder: Path, *, steps: int, reward: str = "-float(len(episode.trajectory.policy_text))") -> str:
    cells = CELLS.format(reward=reward, steps=steps, model=ROOT / "models/tiny-base")
    command = [sys.executable, "-m", "IPython", "--simple-prompt", "--colors=NoColor", "--no-banner", "--quick"]
    done = subprocess.run(command, input=cells, cwd=folder, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout


@pytest.mark.long
def test_a_notebook_trains_goes_on_and_notices_another_reward(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    assert "LAST run/checkpoints/step-000001" in notebook(tmp_path, steps=1)
    assert "LAST run/checkpoints/step-000002" in notebook(tmp_path, steps=2)
    assert [*tmp_path.rglob("*.py")] == []
    other = notebook(tmp_path, steps=3, reward="1.0")
    assert "ERROR" in other, other
    assert "__main__:short" in other, other
    (tmp_path / "other").mkdir()
    failing = notebook(tmp_path / "other", steps=1, reward="episode.nothing")
    assert "ERROR stage.0 (grpo): <ipython-input-" in failing
    assert ">:2: short: AttributeError: 'Episode' object has no attribute 'nothing'" in failing
