"""The loop of every stage that trains: step, log, check for alarms, save; the order in which its rows are taken; and
what such a stage is checked for."""

from __future__ import annotations

import difflib
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.engines.remote.pool import PoolEngine
from sleuth.episodes.protocol import ProtocolCard
from sleuth.evaluation.eval_session import NamedModel
from sleuth.evaluation.figures import figures, is_score
from sleuth.evaluation.judge_exam import cards_json
from sleuth.host.disk import SLACK, DiskPlan, is_full, lack, require_room
from sleuth.kernels.device import releasing_cached_memory
from sleuth.learn.models import plain_line
from sleuth.learn.optim import Optimisation, UpdateResolution, path_length
from sleuth.learn.policy import NotFiniteError, Policy, TokenBudget, Update, no_update
from sleuth.ranks import Ranks
from sleuth.recipe.schedule import peak
from sleuth.recipe.training import TrainingRecipe
from sleuth.runs.alarms import TINY, diagnose
from sleuth.runs.eval_file import CARDS_FILE
from sleuth.runs.interruption import Interrupted, StopRequest
from sleuth.runs.metrics import as_written
from sleuth.runs.progress import ProgressBar, quiet
from sleuth.training.evaluate_stage import evaluate_step
from sleuth.training.stage_context import Saved, StageContext, failing
from sleuth.types import SleuthError, StoppedByRule

Figures = dict[str, Any]
"""A row of `metrics.jsonl`."""


class Trainer(ABC):
    """What a stage trains. Steps are the stage's own, counted from 1."""

    context: StageContext
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    policy: Policy
    budget: TokenBudget
    protocol: ProtocolCard | None = None
    """What checkpoints carry, if the trained model plays episodes."""
    judges: Sequence[Mapping[str, Any]] = ()  # the cards of those that were examined
    idle: ClassVar[str] = ""
    """Why a step may have no update."""
    engine: Any = None
    """What plays its episodes, if anything does."""
    last: Mapping[str, Any] = {}
    """The figures of the step before, as they were written; empty before the first."""

    @abstractmethod
    def step(self, step: int) -> Figures:
        """One optimiser step; its figures."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What a checkpoint has beside the weights, the optimiser and the budget, for a run that continues."""

    @abstractmethod
    def note(self, figures: Figures) -> str:
        """Text beside the progress bar."""

    def opening(self) -> list[str]:
        """Lines to print before the first step of the stage."""
        return []

    def continuing(self, checkpoint: Path) -> list[str]:
        """Lines to print before the stage goes on from a checkpoint of its own."""
        return []

    def remarks(self, step: int, figures: Figures) -> list[str]:
        """Lines to print about a step."""
        had_none = self.idle and figures["loss"] is None and "not_finite" not in figures
        return [f"step {step}: {self.idle} and no update"] if had_none else []

    def evidence(self, alarm: str) -> str:
        """Where the last step shows an alarm; empty if nothing does."""
        return ""

    def save(self, step: int) -> Path:
        """A checkpoint after `step` steps."""
        state = {"policy": self.policy.state_dict(), "budget": self.budget.tokens, **self.state()}
        files = {"protocol": self.protocol, "beside": {CARDS_FILE: cards_json(self.judges)} if self.judges else {}}
        save = self.context.checkpoints.save
        return self.context.ranks.broadcast(lambda: save(step, self.model, self.tokenizer, state, **files))


@failing()
def train(stage: TrainingRecipe, context: StageContext, trainer: Trainer, saved: Saved | None) -> Path:
    """Step after step until the stage's last one; the last checkpoint.

    A full disk does not end the run: training continues, and failed writes are retried after each step. Raises
    StoppedByRule if an alarm ends the run, RunFailed for another reason, such as something that is still not written at
    its end; Interrupted, after a step and its checkpoint, if Ctrl-C or SIGTERM asks for that.
    """
    begin, end = saved.steps if saved else 0, stage.last_step
    folder, ranks = context.folder, context.ranks
    rows = ranks.broadcast(lambda: _rows_until(context, begin))
    checkpoint, owed = saved.checkpoint if saved else None, False
    with ProgressBar(stage.name, end, begin, silent=not ranks.first) as bar, folder.saying(bar.say):
        ranks.broadcast(lambda: _require_disk_space(stage, context, trainer))
        if (slow := plain_line(trainer.model.config)) is not None:
            folder.say(slow)
        lines = [f"continuing at step {begin} of {end}", *trainer.continuing(saved.checkpoint)] if saved else None
        for line in lines or trainer.opening():
            folder.say(line)
        with StopRequest(folder.say) as request:
            if saved and rows and stage.evaluates_at(begin):  # a kill may have ended it
                rows[-1] |= _evaluate(context, trainer, begin, saved.checkpoint)
            for step in range(begin + 1, end + 1):
                if stage.stop_after_worse and ranks.broadcast(context.checkpoints.ends_early):
                    many = f"{stage.best} was not better in {stage.stop_after_worse} evaluations"
                    folder.say(f"{stage.name}: ends after step {step - 1}: {many} (stop_after_worse)")
                    break
                trainer.last = as_written(rows[-1]) if rows else {}
                figures = ranks.broadcast(partial(dict, trainer.step(step)))  # all decide by the row of the first
                alarms = diagnose([*rows, figures]).items()
                raised = {name: line for name, line in alarms if stage.alarm_action(name) != "off"}
                rows.append(figures | ({"alarms": sorted(raised)} if raised else {}))
                folder.write_metrics(stage.name, context.first_step + step, rows[-1])
                bar.advance(note=trainer.note(figures))
                for line in trainer.remarks(step, figures):
                    folder.say(line)
                for name, sentence in raised.items():
                    folder.say(f"step {step}: {name}: {sentence}{trainer.evidence(name)}")
                actions = {name: stage.alarm_action(name) for name in raised}
                if "stop" in actions.values():
                    raise StoppedByRule(_ending("stop", context, step, actions, checkpoint))
                pausing = "pause" in actions.values()
                signalled = request.agreed(ranks)
                if owed or pausing or signalled or stage.saves_at(step):
                    found = _saved(trainer, context, step, checkpoint)
                    owed, checkpoint = found is None, found or checkpoint
                if pausing:
                    raise StoppedByRule(_ending("pause", context, step, actions, checkpoint))
                if stage.evaluates_at(step) and not signalled:
                    if owed:
                        folder.say(f"step {step}: is not evaluated without its checkpoint")
                    elif checkpoint is not None:
                        rows[-1] |= _evaluate(context, trainer, step, checkpoint)
                        signalled = request.agreed(ranks)
                if signalled:
                    line = f"saved at step {step}; the same command goes on"
                    if owed:
                        line = f"stopped at step {step} without room for its checkpoint; the same command goes on from "
                        line += str(checkpoint or "step 0")
                    raise Interrupted(line, signalled)
    if checkpoint is None or owed:
        raise SleuthError(folder.full_disk())
    ranks.broadcast(folder.require_written)
    if (best := ranks.broadcast(partial(context.checkpoints.handed_on, checkpoint))) != checkpoint:
        folder.say(f"{stage.name}: {best.name} is the best by {stage.best_key}, and handed on")
    return best


def _evaluate(context: StageContext, trainer: Trainer, step: int, checkpoint: Path) -> Figures:
    """Measures what is pending at a step, each rank a share of it, and returns its figures."""
    pool = trainer.engine if isinstance(trainer.engine, PoolEngine) else None
    trained = NamedModel(
        name=str(checkpoint), model=trainer.model, tokenizer=trainer.tokenizer, open_pool=lambda *_: pool
    )
    # On a terminal there is the bar of the steps.
    with releasing_cached_memory(), quiet(sys.stderr.isatty()), trainer.policy.masters.whole():
        return evaluate_step(context, step, trained)


def update_figures(budget: TokenBudget, update: Callable[[int], Update], kind: type[Update] = Update) -> Figures:
    """The figures of an update within a token budget; those of no update if loss or gradient is not finite."""
    return figures_of(lambda: budget.run(update), kind)


def figures_of(update: Callable[[], Update], kind: type[Update] = Update) -> Figures:
    """The figures of an update; those of no update if loss or gradient is not finite."""
    try:
        return asdict(update())
    except NotFiniteError as error:
        return no_update(kind) | {"not_finite": str(error)}


def require_ranks(stage: TrainingRecipe, ranks: Ranks) -> None:
    """Raises SleuthError for a setting that needs one process."""
    if not ranks.alone and stage.optimiser == "muon":
        raise SleuthError(
            f'optimiser = "muon" needs whole matrices, and {ranks.world} ranks hold parts of them; take "adamw", or '
            "one process"
        )
    if not ranks.alone and stage.ranks_per_replica and ranks.world % stage.ranks_per_replica:
        raise SleuthError(
            f"ranks_per_replica = {stage.ranks_per_replica}: {ranks.world} ranks cannot be divided into groups of so "
            "many; take a divisor, such as the number of GPUs of a machine"
        )
    if not ranks.alone and getattr(stage, "copying_weight", 0.0):
        raise SleuthError("copying_weight needs the attention of a whole model; use one process")


def require_best(stage: TrainingRecipe) -> None:
    """Raises SleuthError if no evaluation has the figure by which the stage chooses its best checkpoint."""
    name = (stage.best_key or "/em").partition("/")[2]
    known = [row.name for row in figures() if "*" not in row.name]
    if not is_score(name) and name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"the nearest is {near[0]}" if near else f"there are {', '.join(known[:8])} and others"
        raise SleuthError(f'best = "{stage.best}": no evaluation has a figure {name}; {hint}')


def require_update_resolution(stage: TrainingRecipe, dtype: str, resolution: UpdateResolution) -> None:
    """Raises SleuthError if less than one weight in a hundred could change in all steps together."""
    steps, rate = stage.last_step, peak(stage.learning_rate)
    if rate is None:
        return
    length = path_length(replace(Optimisation(**stage.optimisation()), learning_rate=rate), steps)
    moved = resolution.share(length)
    if moved < TINY:
        raise SleuthError(
            f"learning_rate = {rate:g} can move {moved:.2%} of the weights: {steps:,} steps move one by "
            f"{length:.1g} at most, and {dtype}, in which they are stored and sampled from, rounds away what is less "
            f"than half the spacing at a weight (|w|/512 to |w|/256 in bfloat16); it takes "
            f"{resolution.distance(TINY):.1g} to move {TINY:.0%}: raise learning_rate or steps"
        )


def _rows_until(context: StageContext, begin: int) -> list[Figures]:
    """The stage's rows until its step `begin`; later ones are deleted."""
    context.folder.metrics.rewind(context.stage.name, context.first_step + begin)
    return context.checkpoints.rows()


def _require_disk_space(stage: TrainingRecipe, context: StageContext, trainer: Trainer) -> None:
    """Raises SleuthError if the disk has no room for two checkpoints; prints a line if not all will fit."""
    numbers = sum(weight.numel() for weight in trainer.policy.masters.module.parameters())  # in shards, too
    plan = DiskPlan(
        weights=numbers * trainer.model.dtype.itemsize + SLACK,
        state=trainer.policy.state_bytes,
        resumable=stage.keep + 1,  # the best one is kept beside the newest
        milestones=stage.last_step // stage.milestone_every if stage.milestone_every else 0,
    )
    line = require_room(context.folder.path, plan, held=context.checkpoints.held_bytes())
    if line:
        context.folder.say(line)


def _saved(trainer: Trainer, context: StageContext, step: int, last: Path | None) -> Path | None:
    """The checkpoint of this step; None, and a line, if the disk has no room for it or for earlier files."""
    missing = "no room on the disk"
    try:
        if context.ranks.broadcast(context.folder.backlog.flush):
            with trainer.policy.masters.whole():
                return trainer.save(step)
    except OSError as error:
        if not is_full(error):
            raise
        missing = lack(error)
    context.folder.say(
        f"step {step}: {missing} for a checkpoint; the last good one is {last or 'none yet'}, "
        "the run goes on, and the next step tries again"
    )
    return None


def _ending(action: str, context: StageContext, step: int, actions: Mapping[str, str], last: Path | None) -> str:
    """Why alarms stop or pause the run at a step, and how it can go on."""
    by, run = ", ".join(name for name, chosen in actions.items() if chosen == action), context.folder.path
    if action == "stop":
        return (
            f"stopped at step {step} by {by}; the last checkpoint is {last or 'none yet'}: change the recipe and start "
            f"again, or go back to the best checkpoint with --roll-back --run {run}"
        )
    return (
        f"paused at step {step} by {by}; {last or 'no checkpoint'} is saved: the same command resumes the run, and "
        f"with --roll-back it resumes from the best checkpoint of {run}"
    )


Item = TypeVar("Item")


class InfiniteSampler(Generic[Item]):
    """An endless sequence of items, shuffled again in each epoch: a function of the seed and of how many were taken."""

    def __init__(self, items: Sequence[Item], *, seed: tuple[int, ...], taken: int = 0) -> None:
        self.items = items
        self.seed = seed
        self.taken = taken

    def take(self, count: int) -> list[Item]:
        """The next `count` items."""
        taken = self.peek(count)
        self.taken += count
        return taken

    def peek(self, count: int) -> list[Item]:
        """What `take` would return."""
        return [self.at(index) for index in range(self.taken, self.taken + count)]

    def at(self, index: int) -> Item:
        """The item at an index of the sequence, from 0."""
        epoch, place = divmod(index, len(self.items))
        return self.items[_permutation(len(self.items), (*self.seed, epoch))[place]]


@lru_cache(maxsize=16)  # of several sources, the epochs that they are in
def _permutation(count: int, key: tuple[int, ...]) -> list[int]:
    return random.Random(f"order {key}").sample(range(count), count)
