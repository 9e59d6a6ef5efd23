"""`kind = "evaluate"`: asks a model questions and writes what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sleuth.answers.factory import answer_scorer_of, require_answers, require_gradable, require_judges
from sleuth.answers.suites import eval_tasks, load_suite
from sleuth.data.questions import select_tasks
from sleuth.evaluation.eval_session import EvalSession, NamedModel
from sleuth.evaluation.evaluate import all_missing, ask_suite, evaluation, missing_line
from sleuth.evaluation.paired import evaluation_line
from sleuth.judges.factory import JudgePool
from sleuth.recipe.envs import EnvFields
from sleuth.recipe.stage import EvaluateRecipe
from sleuth.recipe.training import EVAL_PREFIX
from sleuth.runs.chain import STEPS, step_name
from sleuth.runs.eval_file import read_eval, with_digests, write_eval
from sleuth.training.engines import evaluation_pool
from sleuth.training.learning import load
from sleuth.training.stage_context import StageContext, StageInputs
from sleuth.types import RetrievalFailed, SleuthError, Task


def require_inputs(stage: EvaluateRecipe, inputs: StageInputs) -> list[Task]:
    """The questions. Raises SleuthError if they do not fit the model or the environment."""
    env, longest = inputs.recipe.env_and_context(inputs.index)
    tasks = eval_tasks(stage.data)
    inputs.setting(stage.data, env, tasks, longest)
    require_answers(() if stage.reward else inputs.recipe.rewards_for(inputs.index), tasks)
    require_gradable(stage.reward, tasks)
    require_judges((*stage.reward, *stage.judged_again))
    inputs.require_cache(stage, longest)
    return tasks


def run(stage: EvaluateRecipe, context: StageContext) -> Path:
    """Write `eval/NAME.json` (of a suite, a file for each set too), and `eval/NAME_forced.json` if asked, unless they
    exist for this model; returns the model unchanged."""
    env, _ = context.recipe.env_and_context(context.index)
    arms = {stage.name: env}
    if stage.forced_search_arm:
        arms[f"{stage.name}_forced"] = env.model_copy(update={"forced_search": True})
    missing = {name: arm for name, arm in arms.items() if stored_eval(context, name) is None}
    if missing:
        _measure(stage, context, missing, model_to_measure(context))
    return Path(context.model)


def model_to_measure(context: StageContext, name: str | None = None) -> NamedModel:
    """The model that a stage starts from, or another, on each rank; the stage's servers generate for it, if it has
    some."""
    model, tokenizer = load(context, name := name or context.model)
    pool = partial(evaluation_pool, context)
    return NamedModel(name=name, model=model, tokenizer=tokenizer, open_pool=pool, ranks=context.ranks)


def evaluate_step(context: StageContext, step: int, trained: NamedModel) -> dict[str, Any]:
    """Writes the evaluations that are `pending` after a step of a stage that trains, `eval/steps/NAME.STEP.json`, adds
    their figures to its row, and returns them. `trained` has the weights of the checkpoint that it is named after.
    Raises SleuthError if one of them lacks the figure by which the stage chooses its best checkpoint."""
    at, folder, key = context.first_step + step, context.folder, context.stage.best_key
    stages = {stage.name: index for index, stage in context.recipe.stages_of(EvaluateRecipe).items()}
    added = dict[str, Any]()
    for name in context.ranks.broadcast(lambda: context.checkpoints.pending(step)):
        asked = replace(context, index=stages[name], model=trained.name, trained=context.index + 1)
        stage, file = context.recipe.stages_of(EvaluateRecipe)[stages[name]], f"{STEPS}/{name}.{step_name(at)}"
        if (contents := stored_eval(asked, file)) is None:
            folder.say(f"evaluating {name} after step {step}")
            (folder.eval / STEPS).mkdir(exist_ok=True)
            env, _ = context.recipe.env_and_context(asked.index)
            contents = _measure(stage, asked, {file: env}, trained)
        measured = {figure: one["value"] for figure, one in contents.items() if isinstance(one, dict) and "low" in one}
        figures = {f"{EVAL_PREFIX}{name}/{figure}": value for figure, value in measured.items()}
        if key is not None and key.startswith(f"{EVAL_PREFIX}{name}/") and figures.get(key) is None:
            has = ", ".join(figure for figure, value in measured.items() if value is not None)
            raise SleuthError(f"best = {context.stage.best!r}: the evaluation {name} has no such figure; it has {has}")
        folder.amend_metrics(context.stage.name, at, figures)
        added |= figures
    return added


def _measure(
    stage: EvaluateRecipe, context: StageContext, arms: Mapping[str, EnvFields], asked: NamedModel
) -> dict[str, Any]:
    """Asks a model the questions of a stage in each environment and writes a file for each, by its name; the contents
    of the last."""
    longest, model, tokenizer = context.recipe.env_and_context(context.index)[1], asked.model, asked.tokenizer
    pool = asked.open_pool(model, tokenizer, longest) if asked.open_pool is not None else None
    suite = load_suite(stage.data.suite, stage.data.per_set) if stage.data.suite is not None else None
    tasks = suite.tasks if suite is not None else select_tasks(stage.data)
    rewards, contents = context.recipe.rewards_for(context.index), dict[str, Any]()
    with JudgePool(context.folder.verdicts, ranks=context.ranks) as judge_pool:
        for name, arm in arms.items():
            session = EvalSession(
                model=model,
                tokenizer=tokenizer,
                setting=arm.setting(tokenizer, tasks),
                context=longest,
                slots=stage.slots,
                cache_memory=stage.cache_memory,
                temperature=stage.temperature,
                seed=context.recipe.seed,
                scorer=answer_scorer_of(rewards),
                rewards=rewards,
                pool=pool,
                ranks=context.ranks,
            )
            session = session.measuring(stage, tasks, judge_pool, context.folder.say)
            with context.folder.costing(stage.name, "asking"):
                if suite is not None:
                    contents = ask_suite(
                        session,
                        suite,
                        name=name,
                        model=context.model,
                        write=partial(store_eval, context),
                        stored=partial(stored_eval, context),
                    )
                else:
                    answered = session.ask(tasks, f"evaluate {name}")
                    contents = evaluation(answered, session, name=name, model=context.model)
            if (line := missing_line(contents)) is not None:
                context.folder.say(f"evaluate {name}: {line}")
                if all_missing(contents):
                    raise RetrievalFailed(f"evaluate {name}: {line}; remove the cause and run the same command again")
            store_eval(context, name, contents | judge_pool.figures(context.ranks))
            context.folder.say(evaluation_line(name, contents))
    return contents


def stored_eval(context: StageContext, name: str, **others: str) -> dict[str, Any] | None:
    """`eval/NAME.json`, as the first rank reads it, if it is of the model that the stage starts from, and of the
    `others`; prints a line if it is of other weights."""
    folder = context.folder
    file, models = folder.eval / f"{name}.json", {"model": context.model, **others}

    def read() -> dict[str, Any] | None:
        contents = read_eval(file, models=models)
        if contents is None and file.exists():
            folder.say(f"{file} is not of the weights that {context.model} has now: it is measured again")
        return contents

    return context.ranks.broadcast(read)


def store_eval(context: StageContext, name: str, contents: Mapping[str, Any], what: str = "evaluation") -> None:
    """Writes `eval/NAME.json`, or queues it until the disk has room, with the names of the stages that had trained the
    model as `after`."""
    folder = context.folder
    trained = [stage.name for stage in context.recipe.stage[: context.trained or context.index] if stage.trains]
    whole = with_digests({"name": name, "after": trained, **contents})
    folder.backlog.write(f"the {what} {name}", lambda: write_eval(folder.eval / f"{name}.json", whole))
