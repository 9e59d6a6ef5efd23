"""Sleuth from Python: runs a recipe, reads its figures, and plays an episode with the model that it trained.

Run it where `sleuth world runs/world` and `sleuth index runs/world/corpus.jsonl runs/world/index` were run.
"""

import asyncio
import json
from pathlib import Path

from sleuth.answers.factory import reward_of
from sleuth.cli.pipeline import require_inputs, run_recipe
from sleuth.engines.local.engine import LocalEngine
from sleuth.judges.factory import JudgePool
from sleuth.learn.models import load_model
from sleuth.recipe import load_recipe
from sleuth.render import Renderer
from sleuth.rollout import Rollout
from sleuth.runs.run_folder import RunFolder
from sleuth.types import Group


def train(recipe: str, run: Path, *overrides: str) -> Path:
    """Runs a recipe, or continues the run in the folder; returns the last checkpoint."""
    resolved = load_recipe(recipe, overrides)
    require_inputs(resolved)  # what `sleuth check recipe` checks
    with RunFolder.open(run, resolved) as folder:
        return run_recipe(resolved, folder)


def play(recipe: str, checkpoint: Path, *, samples: int = 4) -> Group:
    """Plays the first question of the recipe's `grpo` stage, scored by its rewards."""
    resolved = load_recipe(recipe)
    index = next(at for at, stage in enumerate(resolved.stage) if stage.kind == "grpo")
    stage, task = resolved.stage[index], require_inputs(resolved)[index][0]
    model, tokenizer = load_model(str(checkpoint), dtype="float32", device="cpu")
    setting = stage.env.setting(tokenizer, [task])
    rollout = Rollout(
        engine=LocalEngine(model, tokenizer, slots=samples, context=stage.context),
        renderer=Renderer(tokenizer, setting.dialect.tags),
        context=stage.context,
        temperature=stage.sampling.temperature,
        key=(0,),
    )
    reward = reward_of(stage.reward, setting.dialect, tokenizer, JudgePool(checkpoint / "verdicts.sqlite"))
    [group] = asyncio.run(rollout.groups([task], setting.env, samples=samples, reward=reward))
    return group


def main() -> None:
    run = Path("runs/from_python")
    last = train("recipes/demo.toml", run, "grpo.stop_after=5")
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        print(f"step {row['step']}: reward {row['reward_mean']:.3f}")
    group = play("recipes/demo.toml", last)
    for episode, score in zip(group.episodes, group.scores, strict=True):
        print(f"\n-- {score.value}: {score.note}\n{episode.trajectory.text}")


if __name__ == "__main__":
    main()
