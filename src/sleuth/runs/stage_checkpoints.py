"""The checkpoints of one stage of a run: which are kept, which is the best, what damage leaves, and going back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from sleuth.episodes.protocol import ProtocolCard
from sleuth.host.atomic import write_text
from sleuth.host.checksums import damage, has_checksums, require_intact
from sleuth.host.disk import bytes_in, free_bytes
from sleuth.host.model_path import not_a_file
from sleuth.recipe import Recipe, TrainingRecipe
from sleuth.recipe.training import EVAL_PREFIX
from sleuth.runs.alarms import RECENT
from sleuth.runs.chain import forget, recorded, step_name, step_of
from sleuth.runs.checkpoints import (
    CARD,
    checkpoint_bytes,
    checkpoints_in,
    prune_checkpoints,
    remove_checkpoint,
    remove_set_aside,
    require_named,
    resumable,
    save_checkpoint,
    saved_with_state,
    set_aside,
    steps_set_aside,
)
from sleuth.runs.eval_file import read_cards
from sleuth.runs.model_card import Tables, model_card
from sleuth.runs.rollouts import is_whole
from sleuth.runs.run_folder import RunFolder
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCheckpoints:
    """The checkpoints of stage number `index` of a recipe in a run folder, whose names count the steps of the run: the
    stage's own begin after `first_step`."""

    recipe: Recipe
    index: int
    folder: RunFolder
    measured: Callable[[Path], Tables]
    """The tables of a card, from the evaluations in a folder."""
    first_step: int = 0

    @property
    def stage(self) -> TrainingRecipe:
        """The recipe of this stage."""
        return self.recipe.stages_of(TrainingRecipe)[self.index]

    @property
    def steps(self) -> range:
        """The steps of the run that are this stage's."""
        return range(self.first_step + 1, self.first_step + self.stage.steps + 1)

    def resumable(self) -> list[Path]:
        """Those that the stage can resume from, oldest first."""
        return [place for place in self._own() if resumable(place)]

    def held_bytes(self) -> int:
        """Their disk space."""
        return sum(map(bytes_in, self.resumable()))

    def rows(self) -> list[dict[str, Any]]:
        """This stage's rows of `metrics.jsonl`."""
        return [row for row in self.folder.metrics.rows() if row["stage"] == self.stage.name]

    def best(self) -> Path | None:
        """The checkpoint with the highest figure `best` of the stage or, without one, with the highest mean reward over
        the few steps before it, the earliest of equals; None if the stage has no reward. One that was saved off
        schedule counts only if there is no other, so that an interrupted run keeps the same checkpoints."""
        if self.stage.best_key is not None:
            measured = self.measured_steps()
            places = [place for place in self.resumable() if step_of(place) in measured]
            return max(places, key=lambda place: measured[step_of(place)], default=None)
        rewards = {row["step"]: row.get("reward_mean") for row in self.rows()}
        saved, off_schedule = self.resumable(), self._off_schedule()
        means = {}
        for place in [place for place in saved if place not in off_schedule] or saved:
            values = [rewards.get(step) for step in range(step_of(place) - RECENT + 1, step_of(place) + 1)]
            if known := [value for value in values if value is not None]:
                means[place] = fmean(known)
        return max(means, key=means.__getitem__, default=None)

    def measured_steps(self) -> dict[int, float]:
        """The figure `best` of the stage at the steps of the run at which it was measured, in their order."""
        key = self.stage.best_key or ""
        return {row["step"]: row[key] for row in self.rows() if row.get(key) is not None}

    def pending(self, step: int) -> list[str]:
        """The evaluations that are due after a step of the stage, and not in its row of `metrics.jsonl` yet."""
        row = next((row for row in self.rows() if row["step"] == self.first_step + step), {})
        names = self.stage.evaluates_at(step)
        return [name for name in names if not any(key.startswith(f"{EVAL_PREFIX}{name}/") for key in row)]

    def ends_early(self) -> bool:
        """Whether the last evaluations, as many as `stop_after_worse`, were not better than one before them."""
        values, most = [*self.measured_steps().values()], self.stage.stop_after_worse
        return most is not None and bool(values) and len(values) - values.index(max(values)) > most

    def handed_on(self, last: Path) -> Path:
        """What the next stages get from a finished one, whose last checkpoint is `last`: the best by `best`."""
        return (self.best() if self.stage.best_key is not None else None) or last

    def save(
        self,
        step: int,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        state: Mapping[str, Any],
        *,
        protocol: ProtocolCard | None = None,
        beside: Mapping[str, str] | None = None,
    ) -> Path:
        """Saves a checkpoint after `step` steps of this stage, with the texts `beside` as files, and removes the
        checkpoints it replaces; before saving, if both do not fit on the disk. Raises OSError (ENOSPC), with the last
        checkpoint untouched, if there is still no room."""
        checkpoint = self.folder.checkpoints / step_name(self.first_step + step)
        files = {"card": self._card(checkpoint, protocol), "protocol": protocol, "state": state, "beside": beside}
        self._make_room(checkpoint_bytes(model, state))
        self.folder.metrics.sync()
        with self.folder.costing(self.stage.name, "saving"), recorded(checkpoint):
            save_checkpoint(checkpoint, model, tokenizer, run=self.folder.manifest.run, **files)
        self._prune(checkpoint, best=self.best())
        remove_set_aside(checkpoint)
        return checkpoint

    def write_card(self, checkpoint: Path) -> None:
        """Writes the card of a checkpoint again, with what was measured since it was saved."""
        card = self._card(checkpoint, ProtocolCard.read(checkpoint))
        self.folder.backlog.write(f"the card of {checkpoint.name}", lambda: write_text(checkpoint / CARD, card))

    def roll_back(self) -> str:
        """Removes the checkpoints after the best one, and what was measured of them; a line about it. Later random
        draws are others: the same ones would repeat what the run went back from."""
        best, last = self.best(), self.resumable()[-1]
        assert best is not None  # the pipeline rolls back no other stage
        discarded = [place for place in checkpoints_in(self.folder.checkpoints) if step_of(place) > step_of(best)]
        for file in self.folder.eval.rglob("*.json"):
            model = str(json.loads(file.read_bytes()).get("model"))
            if model != self.recipe.model and Path(model).name in {place.name for place in discarded}:
                forget(file)
                file.unlink()  # first: a kill in between leaves no figure of weights that are gone
        for place in reversed(discarded):
            remove_checkpoint(place)
        self.folder.manifest.add_roll_back(self.stage.name, left=step_of(last), begun_at=step_of(best))
        return f"back from step {step_of(last)} to step {step_of(best)}, the best checkpoint of stage {self.stage.name}"

    def last_intact(self) -> Path | None:
        """The last intact checkpoint to resume from, if there is one. Sets damaged ones aside and prints what they
        lack, and which rows and rollouts of the steps before are lost; raises SleuthError if all are damaged. Removes
        those that it replaces, if a kill came between."""
        self._require_folders()
        damaged: list[tuple[Path, str]] = []
        for place in filter(saved_with_state, reversed(self._own())):
            if (problem := damage(place)) is not None:
                damaged.append((place, problem))
                continue
            require_intact(place)
            self._resume_from(place, damaged)
            return place
        if damaged:
            broken, why = damaged[0]
            raise SleuthError(
                f"{broken} is damaged ({why}), and stage {self.stage.name} has no intact checkpoint before it: copy it "
                "again from where it is whole, or remove it to train the stage again from its start"
            )
        self._say_stateless(f"stage {self.stage.name} begins again")
        return None

    def _own(self) -> list[Path]:
        return [place for place in checkpoints_in(self.folder.checkpoints) if step_of(place) in self.steps]

    def _off_schedule(self) -> set[Path]:
        """The checkpoints that an undisturbed run would not have saved: those of an interruption or a pause, and those
        that waited for room on the disk."""
        return {place for place in self.resumable() if not self.stage.saves_at(step_of(place) - self.first_step)}

    def _require_folders(self) -> None:
        """Raises SleuthError for a file in place of a checkpoint, and for one of another run or step."""
        own = {self.folder.checkpoints / step_name(step) for step in self.steps}
        for place in self.folder.checkpoints.glob("step-*"):
            if place in own and not place.is_dir():
                raise SleuthError(f"{place}: is {not_a_file(place) or 'a file'} in place of a checkpoint; remove it")
        for place in checkpoints_in(self.folder.checkpoints):
            require_named(place, self.folder.manifest.run)

    def _resume_from(self, place: Path, damaged: Sequence[tuple[Path, str]]) -> None:
        say = self.folder.say
        for broken, why in damaged:
            aside = set_aside(broken)
            say(f"{broken} is damaged ({why}): it is now {aside.name}; continuing from {place.name}")
        if not has_checksums(place):
            say(f"{place} has no checksums, as those of earlier versions: damage would go unnoticed")
        self._say_stateless(f"continuing from {place.name}", after=place)
        steps, known = range(self.first_step + 1, step_of(place) + 1), {row["step"] for row in self.rows()}
        self._say_lost(steps, known)
        if known.issuperset(steps):  # else the best one, which the rows choose, is not known
            self._prune(place, best=self.best(), until=step_of(place))

    def _say_lost(self, steps: Sequence[int], known: set[int]) -> None:
        """Prints which rows and rollouts of these steps of the run are lost. They are kept as they are: steps before a
        checkpoint are read by reports and `sleuth replay` alone."""
        if lost := {*steps} - known:
            self.folder.say(
                f"{self.folder.metrics.path} lacks the rows of {len(lost)} of the {len(steps)} steps of stage "
                f"{self.stage.name} so far: its curves and the choice of its best checkpoint do without them"
            )
        files = [self.folder.rollouts / f"{step_name(step)}.parquet" for step in steps]
        there = [file for file in files if file.exists()]
        # Stages of other kinds write none, or not at every step.
        missing = [file for file in files if file not in there] if self.stage.kind == "grpo" else []
        for what, lacking in (("missing", missing), ("damaged", [file for file in there if not is_whole(file)])):
            if lacking:
                self.folder.say(
                    f"{self.folder.rollouts}: {len(lacking)} of the files of {len(files)} steps are {what}, such as "
                    f"{lacking[0].name}"
                )

    def _say_stateless(self, then: str, after: Path | None = None) -> None:
        """Prints which checkpoint would be resumed from if its state was not gone: the last one always has it."""
        last = next(reversed(self._own()), None)
        if last is not None and (after is None or step_of(last) > step_of(after)) and not resumable(last):
            self.folder.say(f"{last} has no state to resume from any more: {then}")

    def _card(self, checkpoint: Path, protocol: ProtocolCard | None) -> str:
        return model_card(
            self.recipe,
            stage=self.index,
            step=step_of(checkpoint) - self.first_step,
            checkpoint=checkpoint,
            protocol=protocol,
            measured=self.measured(self.folder.eval),
            overlaps=self.folder.manifest.read().get("overlap", ()),
            judges=read_cards(self.folder.path).values(),
        )

    def _make_room(self, needed: int) -> None:
        """If `needed` bytes are not free, remove all checkpoints but the last and the best, then the best."""
        for best in (self.best(), None):
            kept = self.resumable()
            if not kept or free_bytes(self.folder.path) >= needed:
                return
            self._prune(kept[-1], best=best, keep=1)

    def _prune(self, newest: Path, *, best: Path | None, keep: int | None = None, until: int | None = None) -> None:
        """Removes what is not needed beside `newest`. Where steps of a damaged checkpoint are repeated, those of later
        stages, which follow from the same bytes, stay."""
        last = self.steps[-1]
        repeated = any(step_of(newest) <= step <= last for step in steps_set_aside(self.folder.checkpoints))
        prune_checkpoints(
            self.folder.checkpoints,
            newest,
            keep=keep or self.stage.keep,
            milestone_every=self.stage.milestone_every,
            best=best,
            after=self.first_step,
            until=until or (last if repeated else None),
            off_schedule=self._off_schedule() - {newest},
        )
