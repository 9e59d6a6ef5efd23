"""What every stage gets: its place in the run, the model it starts from; and what it is checked against before."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from sleuth.engines.local.cache import bytes_per_token, pages_of
from sleuth.episodes.fitting import fitting_tasks, require_room, skipped_line
from sleuth.episodes.setting import Setting, require_environment, trial_group
from sleuth.evaluation.paired import measured_tables
from sleuth.host.threads import PROCESS
from sleuth.learn.adapters import adaptable_layers
from sleuth.learn.models import (
    add_to_tokenizer,
    check_family,
    context_of,
    load_model,
    pick_device,
    plain_line,
    plain_reason,
)
from sleuth.learn.optim import UpdateResolution
from sleuth.ranks import ALONE, Ranks
from sleuth.recipe import Recipe, SupervisedRecipe
from sleuth.recipe.envs import EnvFields
from sleuth.recipe.stage import SampledRecipe
from sleuth.recipe.strict import StrictModel
from sleuth.recipe.training import TrainingRecipe
from sleuth.runs.chain import step_of
from sleuth.runs.checkpoints import load_state
from sleuth.runs.run_folder import RunFolder
from sleuth.runs.stage_checkpoints import StageCheckpoints
from sleuth.training.servers import RunServers
from sleuth.types import RunFailed, SleuthError, StoppedByRule, Task, TransientError


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint of a stage after `steps` of its steps, with the state to resume from."""

    checkpoint: Path
    steps: int
    state: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext:
    """Stage number `index` of a recipe in a run folder. `model` is what the stage starts from: a folder or a hub id.

    Steps are counted through the whole run, so that a file named after a step belongs to one stage: `first_step` is the
    sum of `steps` of the earlier stages, wherever `stop_after` ended them. `ranks` run the stage together: the first
    one reads the checkpoints in the folder for all, and all of them save at the same time. `servers` are those that the
    run starts. If another number of stages than `index` has trained the model, it is `trained`.
    """

    recipe: Recipe
    index: int
    folder: RunFolder
    model: str
    first_step: int = 0
    ranks: Ranks = ALONE
    servers: RunServers | None = None
    trained: int | None = None

    @property
    def stage(self) -> TrainingRecipe:
        """The recipe of this stage, which trains."""
        return self.checkpoints.stage

    @property
    def checkpoints(self) -> StageCheckpoints:
        """What the stage has saved."""
        stage = partial(StageCheckpoints, recipe=self.recipe, index=self.index, folder=self.folder)
        return stage(first_step=self.first_step, measured=measured_tables)

    @property
    def key(self) -> tuple[int, ...]:
        """The prefix of the key of every random draw. It changes with each roll-back: the same draws would repeat what
        the run went back from."""
        times = self.folder.manifest.roll_backs(self.stage.name)
        return (self.recipe.seed, self.index, *([times] if times else []))


def last_saved(context: StageContext) -> Saved | None:
    """The stage's last intact checkpoint, if it has saved one (see `StageCheckpoints.last_intact`)."""
    last = context.ranks.broadcast(context.checkpoints.last_intact)
    if last is None:
        return None
    state = load_state(last, mapped=not context.ranks.alone)
    return Saved(checkpoint=last, steps=step_of(last) - context.first_step, state=state)


def finished(context: StageContext, saved: Saved | None) -> Path | None:
    """What the stage hands on, if it has trained and evaluated its last step; prints where it trained more steps than
    `stop_after` asks for, which are not taken back."""
    if saved is None or context.ranks.broadcast(lambda: _goes_on(context, saved)):
        return None
    return context.ranks.broadcast(lambda: context.checkpoints.handed_on(saved.checkpoint))


def _goes_on(context: StageContext, saved: Saved) -> bool:
    last = context.stage.last_step
    if saved.steps > last and context.ranks.first:
        context.folder.say(
            f"{context.stage.name}: stop_after = {last}, but {saved.checkpoint} has {saved.steps} steps already and "
            "stays as it is; a new --run ends earlier"
        )
    ended = saved.steps >= last or context.checkpoints.ends_early()
    return not ended or bool(context.checkpoints.pending(saved.steps))


def keep_fitting(
    context: StageContext,
    data: StrictModel,
    setting: Setting,
    tokenizer: PreTrainedTokenizerFast,
    tasks: Sequence[Task],
    longest: int,
) -> list[Task]:
    """The tasks that a stage trains on: without those that `data` skips, which are printed and recorded."""
    kept, skipped = fitting_tasks(data, setting, tokenizer, tasks, longest)
    if skipped:
        context.folder.say(f"stage {context.stage.name}: {skipped_line(data, skipped, len(tasks))}")
        counts = {"rows": len(skipped), "of": len(tasks), "first": [task.id for task in skipped[:100]]}
        context.folder.manifest.record("skipped", counts, stage=context.stage.name)
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInputs:
    """What a stage is checked against before the run starts: its `index` in the recipe, the `tokenizer` and number of
    `positions` of the model that the run starts from, the bytes of a token in its cache, which updates can change its
    weights, the layers that can have adapters, and a line on what of it is `slow`. A model with random weights does not
    exist yet: it has none of these but `positions`."""

    recipe: Recipe
    index: int
    positions: int
    tokenizer: PreTrainedTokenizerFast | None = None
    token_bytes: int | None = None
    resolution: UpdateResolution | None = None
    linear_layers: Sequence[str] | None = None
    slow: str | None = None

    @property
    def stage_tokenizer(self) -> PreTrainedTokenizerFast | None:
        """The tokenizer that the stage will have: `tokenizer` with the tokens that earlier stages add."""
        if self.tokenizer is None:
            return None
        tokenizer = copy.deepcopy(self.tokenizer)
        for index, stage in self.recipe.stages_of(SupervisedRecipe).items():
            if index < self.index:
                add_to_tokenizer(tokenizer, stage.tokens)
        return tokenizer

    def require_cache(self, limits: SampledRecipe, context: int) -> None:
        """Raises SleuthError if the cache of an engine in this process holds no sequence of `context` tokens within the
        memory that `limits` name; what is free without a limit is known when the stage begins."""
        if None in (limits.cache_memory, self.token_bytes) or self.recipe.engine_at(self.index) is not None:
            return
        device = torch.device(pick_device(self.recipe.device))
        pages_of(self.token_bytes or 0, device, slots=1, context=context, cache_memory=limits.cache_memory)

    def setting(
        self, data: StrictModel, env: EnvFields, tasks: Sequence[Task], context: int
    ) -> tuple[Setting, list[Task]]:
        """The setting of a stage that plays these tasks of its `data`, and those of them that fit. Raises SleuthError
        if the model or `context` is too short, or the tasks are of another kind than the environment, or an environment
        of the user fails."""
        if context > self.positions:
            raise SleuthError(f"context = {context} is more than the {self.positions} positions of the model")
        setting = env.setting(self.tokenizer, tasks)
        if self.tokenizer is None:
            return setting, list(tasks)
        require_room(data, setting, self.tokenizer, tasks, context)
        kept, _ = fitting_tasks(data, setting, self.tokenizer, tasks, context)
        if setting.own_code is not None and kept:
            require_environment(trial_group(setting, kept[0], self.tokenizer, context))
        return setting, kept


def require_family(recipe: Recipe, config: PreTrainedConfig) -> str | None:
    """A line on what is slow with such a model. Raises SleuthError if a stage computes in this process what it cannot
    compute with it."""
    sampled = [index for index, stage in enumerate(recipe.stage) if stage.kind in ("evaluate", "win_rate")]
    trains = len(sampled) < len(recipe.stage)
    if not trains and all(recipe.engine_at(index) is not None for index in sampled):
        return None
    check_family(config)
    line = plain_line(config, trains=trains)
    if line is not None and any(getattr(stage, "copying_weight", 0.0) for stage in recipe.stage):
        raise SleuthError(f"copying_weight reads the attention of models that are not computed so: {line}")
    return line


def stage_inputs(recipe: Recipe) -> list[StageInputs]:
    """What each stage of a recipe is checked against. Loads the model; raises SleuthError if that fails."""
    if recipe.init is not None:
        PROCESS.fit(recipe.init.layer_weights)
        known: dict[str, Any] = {"positions": recipe.init.context}
    else:
        model, tokenizer = load_model(recipe.model, dtype=recipe.dtype, device="cpu")
        slow, paged = require_family(recipe, model.config), plain_reason(model.config, trains=False) is None
        known = {
            "tokenizer": tokenizer,
            "positions": context_of(model),
            "token_bytes": bytes_per_token(model.config, model.dtype) if paged else None,
            "slow": slow,
            "resolution": UpdateResolution(model),
            "linear_layers": adaptable_layers(model),
        }
    return [StageInputs(recipe=recipe, index=index, **known) for index in range(len(recipe.stage))]


@contextmanager
def failing() -> Iterator[None]:
    """Turns errors into those of a run that failed, where its input is known to be right; keeps the notes that ranks
    leave on them."""
    try:
        yield
    except SleuthError as error:
        if isinstance(error, StoppedByRule | TransientError):
            raise
        failed = RunFailed(*error.args)
        failed.__notes__ = getattr(error, "__notes__", [])
        raise failed from error.__cause__
