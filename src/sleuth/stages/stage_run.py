"""What every stage is handed: its place in the run, where it begins, and how it saves and resumes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.build import load_model
from sleuth.recipe import Recipe
from sleuth.recipe.training import TrainingRecipe
from sleuth.runs.checkpoints import checkpoints_in, load_state, prune_checkpoints, save_checkpoint, step_name, step_of
from sleuth.runs.model_card import model_card, read_results
from sleuth.runs.protocol import ProtocolCard
from sleuth.runs.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint of a stage after `steps` of its steps, with the state to go on from."""

    checkpoint: Path
    steps: int
    state: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRun:
    """Stage number `index` of a recipe in a run folder. `model` is what the stage begins with: a folder or a hub id.

    Steps are counted through the whole run, so that a file named after a step belongs to one stage: `first_step` is the
    sum of the horizons of the earlier stages, wherever `stop_after` ended them.
    """

    recipe: Recipe
    index: int
    folder: RunFolder
    model: str
    first_step: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """The beginning of every random draw's name."""
        return self.recipe.seed, self.index

    def load(self, path: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
        """A model in the run's precision, on the run's device."""
        return load_model(str(path), dtype=self.recipe.dtype, device=self.recipe.device)

    def saved(self) -> Saved | None:
        """This stage's last checkpoint, if the stage has saved one."""
        own = self._checkpoints()
        if not own:
            return None
        return Saved(checkpoint=own[-1], steps=step_of(own[-1]) - self.first_step, state=load_state(own[-1]))

    def save(
        self,
        step: int,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        state: Mapping[str, Any],
        *,
        keep: int,
        protocol: ProtocolCard | None = None,
    ) -> Path:
        """A checkpoint after `step` steps of this stage; those that it has outlived go."""
        checkpoint = self.folder.checkpoints / step_name(self.first_step + step)
        results = read_results(self.folder.eval)
        card = model_card(
            self.recipe, stage=self.index, step=step, checkpoint=checkpoint, protocol=protocol, results=results
        )
        save_checkpoint(checkpoint, model, tokenizer, card=card, protocol=protocol, state=state)
        prune_checkpoints(self.folder.checkpoints, checkpoint, keep, after=self.first_step)
        return checkpoint

    def _checkpoints(self) -> list[Path]:
        """The whole checkpoints of this stage, oldest first."""
        stage = self.recipe.stage[self.index]
        assert isinstance(stage, TrainingRecipe)
        steps = range(self.first_step + 1, self.first_step + stage.steps + 1)
        return [place for place in checkpoints_in(self.folder.checkpoints) if step_of(place) in steps]


def last_step(stage: TrainingRecipe) -> int:
    """The step a stage ends with: its horizon, unless `stop_after` comes first."""
    return min(stage.steps, stage.stop_after or stage.steps)
