"""What every stage is handed: its place in the run, where it begins, and how it saves and resumes."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.factories import adapters_of, load_model
from sleuth.learn.adapters import add_adapters, load_adapters
from sleuth.learn.token_budget import TokenBudget
from sleuth.ranks import ALONE, Ranks
from sleuth.recipe import Recipe
from sleuth.recipe.training import TrainingRecipe
from sleuth.runs.alarms import RECENT
from sleuth.runs.atomic import write_text
from sleuth.runs.checkpoints import (
    CARD,
    Retention,
    checkpoint_bytes,
    checkpoints_in,
    load_state,
    prune_checkpoints,
    remove_checkpoint,
    resumable,
    save_checkpoint,
    step_name,
    step_of,
)
from sleuth.runs.disk import bytes_in, free_bytes
from sleuth.runs.model_card import model_card, read_results
from sleuth.runs.protocol import ProtocolCard, RewardSpec
from sleuth.runs.protocol_differences import reward_differences
from sleuth.runs.run_folder import RunFolder
from sleuth.types import SleuthError


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint of a stage after `steps` of its steps, with the state to go on from."""

    checkpoint: Path
    steps: int
    state: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext:
    """Stage number `index` of a recipe in a run folder. `model` is what the stage begins with: a folder or a hub id.

    Steps are counted through the whole run, so that a file named after a step belongs to one stage: `first_step` is the
    sum of the horizons of the earlier stages, wherever `stop_after` ended them. `ranks` run it together: what is asked
    of the folder's checkpoints is agreed among them, and all of them save at the same time.
    """

    recipe: Recipe
    index: int
    folder: RunFolder
    model: str
    first_step: int = 0
    ranks: Ranks = ALONE

    @property
    def key(self) -> tuple[int, ...]:
        """The beginning of every random draw's name. After a roll-back the draws are others: the same ones would lead
        to where the run came from."""
        times = self.folder.manifest.roll_backs(self.stage.name)
        return (self.recipe.seed, self.index, *([times] if times else []))

    def load(self, path: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
        """A model in the run's precision, on the run's device."""
        return load_model(str(path), dtype=self.recipe.dtype, device=self.recipe.device)

    def begun(self, saved: Saved | None) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
        """The model that learns, as `saved` left it or as the stage begins with it. Adapters go on beside the weights
        that the stage began with: those of a checkpoint have them added in."""
        own = saved is not None and self.stage.lora is None
        model, tokenizer = self.load(saved.checkpoint if saved and own else self.model)
        self.adapt(model, saved)
        return model, tokenizer

    def adapt(self, model: PreTrainedModel, saved: Saved | None = None) -> None:
        """Put the stage's adapters into a model that it begins with, where it has any."""
        if self.stage.lora is None:
            return
        seed = random.Random(f"adapters {self.key}").getrandbits(63)
        add_adapters(model, adapters_of(self.stage.lora), seed=seed)
        if saved is not None:
            load_adapters(model, saved.checkpoint)

    def token_budget(self, saved: Saved | None) -> TokenBudget:
        """Tokens of a micro-batch: the recipe's, or as few as it came to before."""
        shortages, before = self.folder.shortages, saved.state["budget"] if saved else self.stage.tokens_per_micro_batch
        tokens = self.ranks.broadcast(lambda: shortages.fitting(self.stage.name, before))
        if tokens < before:
            self.folder.say(f"a rank has run out of memory: from here on an update takes {tokens} tokens at once")
        return TokenBudget(tokens, self.folder.say, self.ranks, partial(shortages.note, self.stage.name))

    def saved(self) -> Saved | None:
        """This stage's last checkpoint that it can go on from, if it has saved one."""
        own = self.ranks.broadcast(self.checkpoints)
        if not own:
            return None
        state = load_state(own[-1], mapped=not self.ranks.alone)
        return Saved(checkpoint=own[-1], steps=step_of(own[-1]) - self.first_step, state=state)

    def require_same_reward(self, saved: Saved, reward: RewardSpec) -> None:
        """Raises SleuthError where the stage began under another reward, unless this one was accepted by its hash."""
        before = RewardSpec.model_validate_json(json.dumps(saved.state["reward"]))
        if before.hash == reward.hash or reward.hash == self.folder.accepted_reward:
            return
        changed = ", and ".join(reward_differences(before, reward, ("the checkpoint", "the recipe")))
        raise SleuthError(
            f"{saved.checkpoint}: its reward {before.hash} is not that of the recipe: {changed}; begin a new run, or "
            f"go on under the new one with --accept-reward {reward.hash}"
        )

    def save(
        self,
        step: int,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        state: Mapping[str, Any],
        *,
        protocol: ProtocolCard | None = None,
        beside: Mapping[str, str] | None = None,
    ) -> Path:
        """A checkpoint after `step` steps of this stage, with the texts `beside` as files; those that it has outlived
        go, and first, where both do not fit on the disk. Raises OSError (ENOSPC), with the last one untouched, where
        there is no room all the same."""

        def write() -> Path:
            checkpoint = self.folder.checkpoints / step_name(self.first_step + step)
            card = self._card(checkpoint, protocol)
            self._make_room(checkpoint_bytes(model, state))
            with self.folder.costing(self.stage.name, "saving"):
                save_checkpoint(checkpoint, model, tokenizer, card=card, protocol=protocol, state=state, beside=beside)
            prune_checkpoints(self.folder.checkpoints, checkpoint, self._retention(best=self.best()))
            return checkpoint

        return self.ranks.broadcast(write)

    def checkpoints(self) -> list[Path]:
        """Those of this stage that it can go on from, oldest first."""
        steps = range(self.first_step + 1, self.first_step + self.stage.steps + 1)
        own = [place for place in checkpoints_in(self.folder.checkpoints) if step_of(place) in steps]
        return [place for place in own if resumable(place)]

    def best(self) -> Path | None:
        """The checkpoint before which the mean reward of a few steps was highest, the earlier one of equals; None where
        no reward is paid."""
        rows = [row for row in self.folder.metrics.rows() if row["stage"] == self.stage.name]
        rewards = {row["step"]: row.get("reward_mean") for row in rows}

        def reached(checkpoint: Path) -> float | None:
            last = step_of(checkpoint)
            values = [rewards.get(step) for step in range(last - RECENT + 1, last + 1)]
            known = [value for value in values if value is not None]
            return fmean(known) if known else None

        values = {place: value for place in self.checkpoints() if (value := reached(place)) is not None}
        return max(values, key=values.__getitem__, default=None)

    def write_card(self, checkpoint: Path) -> None:
        """The card of a checkpoint of this stage again: more was measured since it was saved."""
        card = self._card(checkpoint, ProtocolCard.read(checkpoint))
        self.folder.backlog.write(f"the card of {checkpoint.name}", lambda: write_text(checkpoint / CARD, card))

    def roll_back(self) -> str:
        """Forget what came after the best checkpoint; what to say about it. The draws that follow will be others."""
        best, last = self.best(), self.checkpoints()[-1]
        assert best is not None  # the pipeline goes back in no other stage
        for place in reversed(checkpoints_in(self.folder.checkpoints)):
            if step_of(place) > step_of(best):
                remove_checkpoint(place)
        self.folder.manifest.add_roll_back(self.stage.name, left=step_of(last), begun_at=step_of(best))
        return f"back from step {step_of(last)} to step {step_of(best)}, the best checkpoint of stage {self.stage.name}"

    def held_bytes(self) -> int:
        """What the checkpoints of this stage take."""
        return sum(bytes_in(place) for place in self.checkpoints())

    @property
    def stage(self) -> TrainingRecipe:
        """What this stage is told."""
        stage = self.recipe.stage[self.index]
        assert isinstance(stage, TrainingRecipe)
        return stage

    def _card(self, checkpoint: Path, protocol: ProtocolCard | None) -> str:
        return model_card(
            self.recipe,
            stage=self.index,
            step=step_of(checkpoint) - self.first_step,
            checkpoint=checkpoint,
            protocol=protocol,
            results=read_results(self.folder.eval),
            overlaps=self.folder.manifest.read().get("overlap", ()),
        )

    def _retention(self, *, best: Path | None, keep: int | None = None) -> Retention:
        stage = self.stage
        return Retention(
            keep=keep or stage.keep, milestone_every=stage.milestone_every, best=best, after=self.first_step
        )

    def _make_room(self, needed: int) -> None:
        """Where `needed` bytes are not free, remove all checkpoints but the last and the best, then the best."""
        for best in (self.best(), None):
            there = self.checkpoints()
            if not there or free_bytes(self.folder.path) >= needed:
                return
            prune_checkpoints(self.folder.checkpoints, there[-1], self._retention(best=best, keep=1))
