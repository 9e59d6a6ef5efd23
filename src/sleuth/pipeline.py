"""A recipe's stages in order: what is finished is skipped, the one that stopped resumes, checkpoints are handed on."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from sleuth.data.questions import question_overlap
from sleuth.data.suites import eval_tasks
from sleuth.evaluation.evaluate import run_evaluate
from sleuth.evaluation.reasoning import require_problems, run_reason
from sleuth.evaluation.thought_probe import require_places, run_probe
from sleuth.evaluation.win_rate import run_win_rate
from sleuth.factories import (
    Setting,
    ThoughtSetting,
    context_of,
    load_model,
    played_tasks,
    preference_spec_of,
    require_gradable,
    require_judges,
    require_pools,
    reward_spec_of,
    setting_of,
)
from sleuth.learn.update_resolution import UpdateResolution
from sleuth.ranks import ALONE, Ranks
from sleuth.recipe import (
    AnsweredRowsRecipe,
    OnlineDpoRecipe,
    ProbeRecipe,
    ReasonRecipe,
    Recipe,
    TrainingRecipe,
    WinRateRecipe,
)
from sleuth.recipe.envs import ThoughtEnvRecipe
from sleuth.recipe.evaluation import EvaluateRecipe
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.recipe.supervised import SupervisedRecipe, WarmStartRecipe
from sleuth.render import Renderer, encode
from sleuth.runs.manifest import versions
from sleuth.runs.memory import peak_memory
from sleuth.runs.run_folder import RunFolder
from sleuth.stage_context import StageContext
from sleuth.threads import PROCESS
from sleuth.training.grpo import run_grpo
from sleuth.training.online_dpo import run_online_dpo
from sleuth.training.sft import run_supervised
from sleuth.training.sft_rows import answered_tasks, require_texts
from sleuth.training.update_resolution_check import require_update_resolution
from sleuth.training.warm_start import hinted_env, run_warm_start
from sleuth.types import SleuthError, Task

LONG_QUESTIONS = 100
"""Of so many questions, those of the most bytes, the tokens are counted before a run: of all it would take minutes."""


def run_recipe(recipe: Recipe, folder: RunFolder, ranks: Ranks = ALONE, *, exact: bool = False) -> Path:
    """Run every stage; the last checkpoint (or the recipe's model, if nothing trained). Stages that train do so on all
    `ranks`; what only asks is left to the first. With `exact`, a run is not continued with other library versions or
    another number of threads: SleuthError."""
    require_ranks(recipe, ranks)
    ranks.broadcast(lambda: _begin(recipe, folder, exact=exact))
    if not ranks.first:
        PROCESS.begin(folder.manifest.threads, folder.say)
    model, first_step = recipe.model, 0
    trained: StageContext | None = None  # the last stage that trained
    for index, stage in enumerate(recipe.stage):
        run = StageContext(recipe=recipe, index=index, folder=folder, model=model, first_step=first_step, ranks=ranks)
        with folder.costing(stage.name, "total"):
            match stage:
                case SupervisedRecipe():
                    model = str(run_supervised(stage, run))
                case WarmStartRecipe():
                    model = str(run_warm_start(stage, run))
                case GrpoRecipe():
                    model = str(run_grpo(stage, run))
                case OnlineDpoRecipe():
                    model = str(run_online_dpo(stage, run))
                case EvaluateRecipe():
                    ranks.broadcast(partial(run_evaluate, stage, run))
                case WinRateRecipe():
                    ranks.broadcast(partial(run_win_rate, stage, run))
                case ProbeRecipe():
                    ranks.broadcast(partial(run_probe, stage, run))
                case ReasonRecipe():
                    ranks.broadcast(partial(run_reason, stage, run))
        if isinstance(stage, TrainingRecipe):
            first_step += stage.steps
            trained = run
            if not ranks.alone:
                peaks = ranks.all_gather([peak_memory()])
                folder.backlog.write("what ranks held", partial(folder.manifest.set_rank_memory, stage.name, peaks))
        elif trained is not None:
            ranks.broadcast(partial(trained.write_card, Path(model)))
    ranks.broadcast(folder.require_written)
    return Path(model)


def require_ranks(recipe: Recipe, ranks: Ranks) -> None:
    """Raises SleuthError for what only one process can do, and for what only several can."""
    for index, stage in enumerate(recipe.stage):
        where = f"stage.{index} ({stage.name})"
        if ranks.alone:
            if isinstance(stage, TrainingRecipe) and stage.cpu_offload:
                raise SleuthError(
                    f"{where}: cpu_offload = true is for shards, and one process holds its weights whole: start "
                    f"several, or leave it out (--set stage.{index}.cpu_offload=false); a run goes on either way"
                )
            continue
        if isinstance(stage, TrainingRecipe) and stage.optimiser == "muon":
            raise SleuthError(
                f'{where}: optimiser = "muon" needs whole matrices, and {ranks.world} ranks hold parts of them; '
                'take "adamw", or one process'
            )
        if isinstance(stage, GrpoRecipe) and isinstance(stage.env, ThoughtEnvRecipe):
            raise SleuthError(
                f'{where}: env.kind = "thought": what a thought gains is told by one process, and not by {ranks.world} '
                "ranks; train in one process"
            )
        if isinstance(stage, GrpoRecipe) and stage.engine is not None:
            raise SleuthError(
                f"{where}: engine names a pool of servers, and {ranks.world} ranks write their episodes themselves; "
                "leave [stage.engine] out, or train in one process"
            )


def _begin(recipe: Recipe, folder: RunFolder, *, exact: bool) -> None:
    """All that can be known to be wrong before the first step, and what the data says of the evaluations."""
    PROCESS.begin(folder.manifest.threads, folder.say)
    if exact:
        _require_versions(folder)
    overlaps = list(_overlaps(recipe, require_inputs(recipe)))
    folder.manifest.set_overlap(overlaps)
    for overlap in overlaps:
        folder.say("{shared} of the {of} questions of {test} are also trained on, in stage {train}".format(**overlap))
    _keep_threads(folder, exact=exact)


def _require_versions(folder: RunFolder) -> None:
    """Raises SleuthError where the run began with other versions."""
    begun, now = folder.manifest.read()["versions"], versions()
    changed = [f"{name} {begun.get(name)} and is {now.get(name)} now" for name in begun if begun[name] != now.get(name)]
    if changed:
        raise SleuthError(f"{folder.path}: --exact: the run began with {', '.join(changed)}; install what it had")


def _keep_threads(folder: RunFolder, *, exact: bool) -> None:
    """Record the number of threads of a run that begins; say where a continued one has another, or, with `exact`, raise
    SleuthError."""
    recorded, chosen = folder.manifest.threads, PROCESS.chosen
    if chosen is None or chosen.number == recorded:
        return
    if recorded is None:
        folder.manifest.set_threads(chosen.number)
        return
    change = f"the run began with {recorded} threads and continues with {chosen.number}"
    if exact:
        raise SleuthError(f"{folder.path}: --exact: {change}; set OMP_NUM_THREADS={recorded} or leave it unset")
    folder.say(f"{change}: the last bits of its results can differ")


def require_accepted(recipe: Recipe, reward: str) -> None:
    """Raises SleuthError where `reward` is the hash of none of the recipe's rewards."""
    rewards = [reward_spec_of(stage.reward).hash for stage in recipe.stage if isinstance(stage, GrpoRecipe)]
    rewards += [preference_spec_of(stage.reward).hash for stage in recipe.stage if isinstance(stage, OnlineDpoRecipe)]
    if reward not in rewards:
        raise SleuthError(f"--accept-reward {reward}: the recipe's reward is {' and '.join(rewards) or 'none'}")


def stage_to_roll_back(recipe: Recipe, folder: RunFolder) -> StageContext:
    """The last stage that has saved anything. Raises SleuthError where none has, or where it has no best checkpoint."""
    begun = [run for run in trained_stages(recipe, folder) if run.checkpoints()]
    if not begun:
        raise SleuthError(f"{folder.path}: holds no checkpoint to go back to")
    if begun[-1].best() is None:
        raise SleuthError(f"{begun[-1].checkpoints()[-1]}: its stage has no rewards to tell its best checkpoint")
    return begun[-1]


def trained_stages(recipe: Recipe, folder: RunFolder) -> Iterator[StageContext]:
    """The stages that train, each beginning with what the folder holds of the one before."""
    model, first_step = recipe.model, 0
    for index, stage in enumerate(recipe.stage):
        if not isinstance(stage, TrainingRecipe):
            continue
        run = StageContext(recipe=recipe, index=index, folder=folder, model=model, first_step=first_step)
        yield run
        saved = run.checkpoints()
        model, first_step = str(saved[-1]) if saved else model, first_step + stage.steps


def require_inputs(recipe: Recipe) -> dict[int, list[Task]]:
    """Read all that the stages will need, so that what is missing or does not fit stops the run before its first step,
    not in its third hour; the questions by stage. Raises a one-line `SleuthError` that names the stage."""
    tokenizer, positions, resolution = _base(recipe)
    questions: dict[int, list[Task]] = {}
    for index, stage in enumerate(recipe.stage):
        try:
            if resolution is not None and isinstance(stage, TrainingRecipe):
                require_update_resolution(stage, recipe.dtype, resolution)
            if isinstance(stage, OnlineDpoRecipe | WinRateRecipe):
                questions[index] = require_pools(stage, tokenizer, positions)
                continue
            if isinstance(stage, ReasonRecipe):
                questions[index] = require_problems(stage, tokenizer, positions)
                continue
            if isinstance(stage, ProbeRecipe):
                questions[index] = require_places(stage, tokenizer, positions)
                continue
            if isinstance(stage, SupervisedRecipe):
                cut = require_texts(stage, tokenizer, positions)
                questions |= {index: cut} if cut else {}
                if not isinstance(stage.data, AnsweredRowsRecipe):
                    continue
                env, trained = recipe.answered_in(index)
                context, tasks = trained or positions, answered_tasks(stage.data)
                questions[index] = tasks
            elif isinstance(stage, WarmStartRecipe):  # it plays what the stage behind it plays, with a hint
                warmed = recipe.warmed(index)
                env, context = hinted_env(warmed.env, stage.hint), warmed.context
                tasks = played_tasks(warmed, tokenizer)
            elif isinstance(stage, GrpoRecipe):
                env, context, tasks = stage.env, stage.context, played_tasks(stage, tokenizer)
                questions[index] = tasks
            else:
                env, context = recipe.played_in(index)
                tasks = eval_tasks(stage.data)
                questions[index] = tasks
            if context > positions:
                raise SleuthError(f"context = {context} is more than the {positions} positions of the model")
            setting = setting_of(env, tokenizer, tasks)
            if isinstance(stage, GrpoRecipe):
                require_gradable(stage.reward, tasks)
                require_judges(stage.reward)
            if tokenizer is not None:
                _require_room(setting, tokenizer, tasks, context)
                if isinstance(stage, SupervisedRecipe):
                    _require_answers_fit(setting, tokenizer, tasks)
        except SleuthError as error:
            raise SleuthError(f"stage.{index} ({stage.name}): {error}") from None
    return questions


def _overlaps(recipe: Recipe, tasks: Mapping[int, Sequence[Task]]) -> Iterator[dict[str, Any]]:
    """Where an evaluation asks what a stage trains on."""
    asked = [index for index in tasks if not isinstance(recipe.stage[index], TrainingRecipe)]
    for trained, tested in product([index for index in tasks if index not in asked], asked):
        shared = len(question_overlap(tasks[trained], tasks[tested]))
        if shared:
            names = {"train": recipe.stage[trained].name, "test": recipe.stage[tested].name}
            yield names | {"shared": shared, "of": len(tasks[tested])}


def _base(recipe: Recipe) -> tuple[PreTrainedTokenizerFast | None, int, UpdateResolution | None]:
    """The tokenizer of what the run begins with, how many positions that has, and what can move its weights; random
    ones, and their tokenizer, do not exist yet."""
    first = recipe.stage[0]
    if isinstance(first, SupervisedRecipe) and first.init is not None:
        PROCESS.fit(first.init.layer_weights)
        return None, first.init.context, None
    model, tokenizer = load_model(recipe.model, dtype=recipe.dtype, device="cpu")
    return tokenizer, context_of(model), UpdateResolution(model)


def _require_room(setting: Setting, tokenizer: PreTrainedTokenizerFast, tasks: Sequence[Task], context: int) -> None:
    """The longest prompt must leave room for a whole turn."""
    renderer = Renderer(tokenizer)

    async def prompt_tokens(task: Task) -> int:
        opening = await setting.env(task).open()
        return sum(len(segment.tokens) for segment in renderer.render_all(opening.pieces))

    async def longest_prompt() -> tuple[int, str]:
        long = heapq.nlargest(LONG_QUESTIONS, tasks, key=_bytes_asked)
        return max([(await prompt_tokens(task), task.id) for task in long])

    tokens, question = asyncio.run(longest_prompt())
    answer = setting.longest_answer
    if tokens + answer > context:
        what, key = "turn_tokens = ", "env.turn_tokens"
        if isinstance(setting, ThoughtSetting):
            what, key = "the thought and suffix of ", "env.thought_tokens"
        raise SleuthError(
            f"question {question!r}: its prompt of {tokens} tokens and {what}{answer} do not fit in "
            f"context = {context}; raise context, lower {key}, or leave the question out"
        )


def _require_answers_fit(setting: Setting, tokenizer: PreTrainedTokenizerFast, tasks: Sequence[Task]) -> None:
    """What is taught must be short enough to be written."""
    long = heapq.nlargest(LONG_QUESTIONS, tasks, key=lambda task: len(task.reference.encode()))
    tokens, name = max((len(encode(tokenizer, task.reference)), task.id) for task in long)
    if tokens > setting.dialect.turn_tokens:
        raise SleuthError(
            f"row {name!r}: its answer of {tokens} tokens is more than turn_tokens = {setting.dialect.turn_tokens}, "
            "in which it is to be written; raise env.turn_tokens, or leave the row out"
        )


def _bytes_asked(task: Task) -> int:
    """How much of a prompt is the task's own; a message of its own holds the tool output too."""
    if task.prompt or task.evidence is None:
        return len((task.prompt or task.question).encode())
    return len(task.question.encode()) + len(task.evidence.output.encode())
