"""Runs the stages of a recipe in order: skips those that are finished, resumes the one that stopped, and hands each the
last checkpoint of the stages before it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch

from sleuth.answers.factory import reward_spec_of
from sleuth.data.questions import question_overlap
from sleuth.episodes.function import accepted_hash, own_code_in
from sleuth.host.checksums import of_model, require_intact
from sleuth.host.hardware import Cards, card_with, read_cards
from sleuth.host.memory import peak_memory, total_host_memory
from sleuth.host.threads import PROCESS
from sleuth.judges.factory import LAUNCHER
from sleuth.kernels.device import release_cached_memory
from sleuth.learn.adapters import require_targets
from sleuth.learn.models import pick_device
from sleuth.own.permission import CODE
from sleuth.plan.fit import plan_for_cards, plan_for_cpu
from sleuth.plan.phases import server_share
from sleuth.ranks import ALONE, Ranks
from sleuth.recipe import GrpoRecipe, Recipe, TrainingRecipe
from sleuth.recipe.stage import StageFields
from sleuth.runs.checkpoints import require_own
from sleuth.runs.interruption import ending_at_sigterm
from sleuth.runs.manifest import changes_since
from sleuth.runs.run_folder import RunFolder
from sleuth.runs.stage_checkpoints import StageCheckpoints
from sleuth.terminal.inputs import naming
from sleuth.training import loop
from sleuth.training.servers import RunServers, require_launchable
from sleuth.training.stage_context import StageContext, failing, stage_inputs
from sleuth.types import SleuthError, Task


def run_recipe(recipe: Recipe, folder: RunFolder, ranks: Ranks = ALONE, *, exact: bool = False) -> Path:
    """Run every stage; the last checkpoint (or the recipe's model, if nothing trained). All `ranks` train and measure.
    With `exact`, raises SleuthError if a run is resumed with other library versions, on
    another kind of processor or with another number of threads; Interrupted if SIGTERM ends it."""
    with ending_at_sigterm():
        require_ranks(recipe, ranks)
        ranks.broadcast(lambda: _begin(recipe, folder, ranks.world, exact=exact))
        if not ranks.first:
            PROCESS.begin(folder.manifest.read().get("threads"), folder.say)
        split = partial(server_share, recipe, ranks=ranks.world)
        run_servers = RunServers(recipe, folder.path / "servers", folder.say, ranks=ranks.world, split=split)
        with closing(run_servers) as servers, LAUNCHER.starting(ranks.shared(lambda: servers).serve):
            last = _run_each(recipe, folder, ranks, servers)
        ranks.broadcast(folder.require_written)
        return last


def _run_each(recipe: Recipe, folder: RunFolder, ranks: Ranks, servers: RunServers) -> Path:
    model = recipe.model
    trained: StageContext | None = None  # the last stage that trained
    awaiting = {index for index in range(len(recipe.stage)) if recipe.awaited(index)}
    for index, stage in enumerate(recipe.stage):
        servers.rest()
        servers.keep(stage.launched())
        if made := {at for at in awaiting if not recipe.awaited(at)}:
            ranks.broadcast(partial(_require_made, recipe, made))
            awaiting -= made
        context = _context(recipe, index, folder, model, ranks=ranks, servers=servers)
        alone = replace(context, ranks=ALONE)
        with folder.costing(stage.name, "total"):
            if stage.trains:
                model = str(stage.run(context))
            else:
                with failing():
                    stage.run(context) if stage.measures else ranks.broadcast(partial(stage.run, alone))
        release_cached_memory()
        if stage.trains:
            trained = context
            if not ranks.alone:
                peaks = ranks.all_gather([peak_memory()])
                folder.backlog.write(
                    "peak memory of ranks", partial(folder.manifest.set_rank_memory, stage.name, peaks)
                )
        elif trained is not None:
            ranks.broadcast(partial(trained.checkpoints.write_card, Path(model)))
        ranks.broadcast(partial(stage.require_passed, alone))
    return Path(model)


def require_ranks(recipe: Recipe, ranks: Ranks) -> None:
    """Raises SleuthError for stages that need one process, or several."""
    training = recipe.stages_of(TrainingRecipe)
    for index, stage in enumerate(recipe.stage):
        with _naming(index, stage):
            if index in training:
                loop.require_ranks(training[index], ranks)
            stage.require_ranks(ranks)


def require_inputs(recipe: Recipe, warn: Callable[[str], None] | None = None) -> dict[int, list[Task]]:
    """The questions of each stage, by its index. Reads everything that the stages will need: what is missing or does
    not fit raises a one-line SleuthError that names the stage, before the first step and not in its third hour. Calls
    `warn` with a line for what stops no run, which a run prints when the stage begins. A stage that runs code which
    this check goes on without is left out.

    Nothing is computed, so the number of threads is chosen again, and printed, where computing begins.
    """
    PROCESS.begin(None)
    return _read_inputs(recipe, warn)


def _read_inputs(recipe: Recipe, warn: Callable[[str], None] | None = None) -> dict[int, list[Task]]:
    questions: dict[int, list[Task]] = {}
    training = recipe.stages_of(TrainingRecipe)
    for inputs, stage in zip(stage_inputs(recipe), recipe.stage, strict=True):
        if warn is not None and inputs.slow is not None and inputs.index == 0:
            warn(inputs.slow)
        with _naming(inputs.index, stage), CODE.skipping():
            if (trained := training.get(inputs.index)) is not None:
                loop.require_best(trained)
                if inputs.resolution is not None:
                    loop.require_update_resolution(trained, recipe.dtype, inputs.resolution)
                if trained.lora is not None and inputs.linear_layers is not None:
                    require_targets(trained.lora.layers(inputs.linear_layers), inputs.linear_layers)
            if (other := getattr(stage, "frozen_model", None)) is not None:  # the policy's own weights are loaded above
                require_intact(Path(other), of_model)
            require_launchable(stage)
            if recipe.awaited(inputs.index) is None:  # else it is read when the stage begins
                questions[inputs.index] = tasks = stage.require_inputs(inputs)
                if warn is not None:
                    for line in stage.notes(inputs, tasks):
                        warn(f"stage.{inputs.index} ({stage.name}): {line}")
    return questions


def _require_made(recipe: Recipe, indices: Container[int]) -> None:
    """Raises SleuthError if the stages at `indices`, whose files did not exist before the run, cannot read them."""
    for inputs, stage in zip(stage_inputs(recipe), recipe.stage, strict=True):
        if inputs.index in indices:
            with _naming(inputs.index, stage):
                stage.require_inputs(inputs)


def require_accepted(recipe: Recipe, reward: str) -> None:
    """Raises SleuthError unless `reward` is the hash of one of the recipe's rewards."""
    rewards = [
        accepted_hash(reward_spec_of(stage.reward), own_code_in(stage) if isinstance(stage, GrpoRecipe) else {})
        for stage in cast(Sequence[Any], recipe.stage)
        if stage.trains and hasattr(stage, "reward")
    ]
    if reward not in rewards:
        raise SleuthError(f"--accept-reward {reward}: the recipe's reward is {' and '.join(rewards) or 'none'}")


def stage_to_roll_back(recipe: Recipe, folder: RunFolder) -> StageCheckpoints:
    """Those of the last stage that has saved any. Raises SleuthError if there are none, or no best one."""
    saved = [one.checkpoints for one in trained_stages(recipe, folder) if one.checkpoints.resumable()]
    if not saved:
        raise SleuthError(f"{folder.path}: holds no checkpoint to go back to")
    if (best := saved[-1].best()) is None:
        raise SleuthError(f"{saved[-1].resumable()[-1]}: its stage has no rewards to choose a best checkpoint by")
    require_own(best, folder.manifest.run)
    return saved[-1]


def trained_stages(recipe: Recipe, folder: RunFolder) -> Iterator[StageContext]:
    """The stages that train, each with the last checkpoint of the one before it."""
    model = recipe.model
    for index in recipe.stages_of(TrainingRecipe):
        context = _context(recipe, index, folder, model)
        yield context
        saved = context.checkpoints.resumable()
        model = str(context.checkpoints.handed_on(saved[-1])) if saved else model


def _context(recipe: Recipe, index: int, folder: RunFolder, model: str, **more: Any) -> StageContext:
    first_step = recipe.first_step(index)
    return StageContext(recipe=recipe, index=index, folder=folder, model=model, first_step=first_step, **more)


def _begin(recipe: Recipe, folder: RunFolder, ranks: int, *, exact: bool) -> None:
    """Check all inputs, record the plan, and record and print the overlaps of training and evaluation questions."""
    PROCESS.begin(folder.manifest.read().get("threads"), folder.say)
    _require_same_machine(folder, exact=exact)
    overlaps = list(_overlaps(recipe, _read_inputs(recipe)))
    folder.manifest.record("overlap", overlaps)
    folder.manifest.record("planned", _planned(recipe, ranks))
    for overlap in overlaps:
        folder.say("{shared} of the {of} questions of {test} are also trained on, in stage {train}".format(**overlap))
    _keep_threads(folder, exact=exact)


def _planned(recipe: Recipe, ranks: int) -> Mapping[str, Mapping[str, float | None]]:
    """What each stage takes by the plan: on the cards that the recipe names, or else on those that are here. Nothing
    where the plan does not know the model's shape, or of several processes on CPUs."""
    try:
        if pick_device(recipe.device) == "cpu":
            return plan_for_cpu(recipe, total_host_memory()).by_stage() if ranks == 1 else {}
        if recipe.card is not None:
            return plan_for_cards(recipe, read_cards(recipe.card)).by_stage()
        memory = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        return plan_for_cards(recipe, Cards(count=ranks, card=card_with(memory))).by_stage()
    except SleuthError:
        return {}


def _require_same_machine(folder: RunFolder, *, exact: bool) -> None:
    """Print what of libraries, processor and settings is another than when the run began, or, if `exact`, raise
    SleuthError."""
    changed = changes_since(folder.manifest.read())
    if changed and exact:
        raise SleuthError(f"{folder.path}: --exact: the run began with {', '.join(changed)}; go back to what it had")
    if changed:
        folder.say(f"the run began with {', '.join(changed)}: from here on its results can differ")


def _keep_threads(folder: RunFolder, *, exact: bool) -> None:
    """Record the number of threads of a new run; print that a resumed one has another, or, if `exact`, raise
    SleuthError."""
    recorded, chosen = folder.manifest.read().get("threads"), PROCESS.chosen
    if chosen is None or chosen.number == recorded:
        return
    if recorded is None:
        folder.manifest.record("threads", chosen.number)
        return
    change = f"the run began with {recorded} threads and continues with {chosen.number}"
    if exact:
        raise SleuthError(f"{folder.path}: --exact: {change}; set OMP_NUM_THREADS={recorded} or leave it unset")
    folder.say(f"{change}: the last bits of its results can differ")


def _overlaps(recipe: Recipe, tasks: Mapping[int, Sequence[Task]]) -> Iterator[dict[str, Any]]:
    """Where an evaluation asks questions that a stage trains on."""
    training = [index for index in tasks if recipe.stage[index].trains]
    for trained, tested in product(training, [index for index in tasks if index not in training]):
        shared = len(question_overlap(tasks[trained], tasks[tested]))
        if shared:
            names = {"train": recipe.stage[trained].name, "test": recipe.stage[tested].name}
            yield names | {"shared": shared, "of": len(tasks[tested])}


def _naming(index: int, stage: StageFields) -> AbstractContextManager[None]:
    return naming(f"stage.{index} ({stage.name})")
