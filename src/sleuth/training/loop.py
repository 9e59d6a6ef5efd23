"""The loop of every stage that trains: step, write down, watch, save. What a step is, a trainee knows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from transformers import PreTrainedModel

from sleuth.learn.policy import Policy
from sleuth.recipe.training import TrainingRecipe
from sleuth.runs.alarms import diagnose
from sleuth.runs.disk import SLACK, DiskPlan, is_full, require_room
from sleuth.runs.progress import ProgressBar
from sleuth.stage_context import Saved, StageContext
from sleuth.types import SleuthError

Figures = dict[str, Any]
"""A row of `metrics.jsonl`."""


class Trainer(Protocol):
    """What a stage trains. Steps are the stage's own, counted from 1."""

    model: PreTrainedModel
    policy: Policy

    def opening(self) -> list[str]:
        """What to say before the first step of all."""
        ...

    def step(self, step: int) -> Figures:
        """One optimiser step."""
        ...

    def note(self, figures: Figures) -> str:
        """What stands beside the progress bar."""
        ...

    def remarks(self, step: int, figures: Figures) -> list[str]:
        """What of a step is worth a line of its own."""
        ...

    def evidence(self, alarm: str) -> str:
        """Where the last step shows an alarm; empty where nothing does."""
        ...

    def save(self, step: int) -> Path:
        """A checkpoint after `step` steps."""
        ...


def train(stage: TrainingRecipe, run: StageContext, trainer: Trainer, saved: Saved | None) -> Path:
    """Step after step until the stage's last one; the last checkpoint.

    A full disk leaves the run training on its last good save; what could not be written is tried again. Raises
    SleuthError where an alarm ends the run, and where the disk never had room for all.
    """
    begin, end = saved.steps if saved else 0, stage.last_step
    folder, ranks = run.folder, run.ranks
    rows = ranks.broadcast(lambda: _rows_until(run, begin))
    checkpoint, owed = saved.checkpoint if saved else None, False
    with ProgressBar(stage.name, end, begin, silent=not ranks.first) as bar, folder.saying(bar.say):
        ranks.broadcast(lambda: _preflight(stage, run, trainer))
        for line in trainer.opening() if begin == 0 else ():
            folder.say(line)
        for step in range(begin + 1, end + 1):
            figures = _broadcast_figures(trainer.step(step), run)
            raised = {
                name: sentence
                for name, sentence in diagnose([*rows, figures]).items()
                if getattr(stage.alarms, name) != "off"
            }
            rows.append(figures | ({"alarms": sorted(raised)} if raised else {}))
            folder.write_metrics(stage.name, run.first_step + step, rows[-1])
            bar.advance(note=trainer.note(figures))
            for line in trainer.remarks(step, figures):
                folder.say(line)
            for name, sentence in raised.items():
                folder.say(f"step {step}: {name}: {sentence}{trainer.evidence(name)}")
            actions = {name: getattr(stage.alarms, name) for name in raised}
            if "stop" in actions.values():
                raise SleuthError(_stopped(run, step, actions, checkpoint))
            pausing = "pause" in actions.values()
            if owed or pausing or saves_at(stage, step):
                found = _saved(trainer, run, step, checkpoint)
                owed, checkpoint = found is None, found or checkpoint
            if pausing:
                raise SleuthError(_paused(run, step, actions, checkpoint))
    if checkpoint is None or owed:
        raise SleuthError(folder.full_disk())
    ranks.broadcast(folder.require_written)
    return checkpoint


def saves_at(stage: TrainingRecipe, step: int) -> bool:
    """Whether the recipe asks for a checkpoint after `step` steps."""
    rhythms = [stage.save_every] + ([stage.milestone_every] if stage.milestone_every else [])
    return step == stage.last_step or any(step % rhythm == 0 for rhythm in rhythms)


def _rows_until(run: StageContext, begin: int) -> list[Figures]:
    """The stage's figures until its step `begin`; later ones are forgotten."""
    run.folder.metrics.rewind(run.stage.name, run.first_step + begin)
    return [row for row in run.folder.metrics.rows() if row["stage"] == run.stage.name]


def _broadcast_figures(mine: Figures, run: StageContext) -> Figures:
    """Those of the first rank, which asked the judges and whose time is told: all ranks watch the same row."""
    return run.ranks.broadcast(lambda: mine)


def _preflight(stage: TrainingRecipe, run: StageContext, trainer: Trainer) -> None:
    """Whether the disk has room for the checkpoints that the stage will write."""
    plan = DiskPlan(
        weights=sum(weight.nbytes for weight in trainer.model.parameters()) + SLACK,
        state=trainer.policy.state_bytes,
        resumable=stage.keep + 1,  # the best one stays beside the newest
        milestones=stage.last_step // stage.milestone_every if stage.milestone_every else 0,
    )
    line = require_room(run.folder.path, plan, held=run.held_bytes())
    if line:
        run.folder.say(line)


def _saved(trainer: Trainer, run: StageContext, step: int, last: Path | None) -> Path | None:
    """The checkpoint of this step; None, and a line, where the disk has no room for it or for what came before it."""
    try:
        if run.ranks.broadcast(run.folder.backlog.flush):
            return trainer.save(step)
    except OSError as error:
        if not is_full(error):
            raise
    run.folder.say(
        f"step {step}: no room on the disk for a checkpoint; the last good one is {last or 'none yet'}, "
        "the run goes on, and the next step tries again"
    )
    return None


def _stopped(run: StageContext, step: int, actions: Mapping[str, str], last: Path | None) -> str:
    return (
        f"stopped at step {step} by {_names(actions, 'stop')}; the last checkpoint is {last or 'none yet'}: change the "
        f"recipe and begin anew, or go back to the best one with --roll-back --run {run.folder.path}"
    )


def _paused(run: StageContext, step: int, actions: Mapping[str, str], last: Path | None) -> str:
    return (
        f"paused at step {step} by {_names(actions, 'pause')}; {last or 'no checkpoint'} is saved: the same command "
        f"goes on, and with --roll-back it goes on from the best checkpoint of {run.folder.path}"
    )


def _names(actions: Mapping[str, str], action: str) -> str:
    return ", ".join(name for name, chosen in actions.items() if chosen == action)
