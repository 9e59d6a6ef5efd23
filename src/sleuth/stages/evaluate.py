"""Questions answered by a model as it stands: figures with intervals, and a record of every question."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sleuth.build import search_setting
from sleuth.data.questions import select_tasks
from sleuth.evaluation.metrics import episode_figures, outcome_counts
from sleuth.recipe.envs import SearchEnvRecipe
from sleuth.recipe.stages import EvaluateRecipe, GrpoRecipe
from sleuth.runs.atomic import write_text
from sleuth.stages.examination import Examination
from sleuth.stages.stage_run import StageRun
from sleuth.types import Episode, Score, SleuthError


def run_evaluate(stage: EvaluateRecipe, run: StageRun) -> Path:
    """Write `eval/NAME.json` unless it is there already, of this very model; the model goes on as it came."""
    file = run.folder.eval / f"{stage.name}.json"
    if _measures(file, run.model):
        return Path(run.model)
    model, tokenizer = run.load(run.model)
    tasks = select_tasks(stage.data)
    env, context = stage.env or _env_of_nearest_grpo(run), stage.context or _context_of_nearest_grpo(run)
    examination = Examination(
        model=model,
        tokenizer=tokenizer,
        setting=search_setting(env, tokenizer, tasks),
        context=context,
        temperature=stage.temperature,
        seed=run.recipe.seed,
    )
    answered = examination.ask(tasks, f"evaluate {stage.name}")
    write_evaluation(file, evaluation(answered, examination, name=stage.name, model=run.model))
    return Path(run.model)


def evaluation(
    answered: Sequence[tuple[Episode, Score]], examination: Examination, *, name: str, model: str
) -> dict[str, Any]:
    """The contents of an evaluation file: every figure with its interval, how the episodes ended, and all records."""
    records = [(episode.task, episode.trajectory, score) for episode, score in answered]
    protocol = examination.setting.protocol("strict")
    return {
        "name": name,
        "model": model,
        **{key: figure.as_json() for key, figure in episode_figures(records).items()},
        "outcomes": outcome_counts(records),
        "temperature": examination.temperature,
        "protocol": protocol.model_dump(mode="json") | {"hash": protocol.hash},
        "records": [question_record(episode, score) for episode, score in answered],
    }


def question_record(episode: Episode, score: Score) -> dict[str, Any]:
    """All that happened on one question, as plain values."""
    trajectory = episode.trajectory
    answers = [action.text for action in trajectory.actions if action.kind == "answer"]
    return {
        "id": episode.task.id,
        "question": episode.task.question,
        "golden_answers": list(episode.task.golden_answers),
        "gold_passages": list(episode.task.gold_passages),
        "kind": episode.task.kind,
        "em": score.parts.get("em"),
        "note": score.note,
        "answer": answers[-1] if answers else None,
        "searches": trajectory.searches,
        "stop": trajectory.stop,
        "segments": [
            {"author": segment.author, "text": segment.text, "tokens": len(segment.tokens), "cut": segment.cut}
            for segment in trajectory.segments
        ],
        "actions": [
            {
                "kind": action.kind,
                "text": action.text,
                "passages": [{"id": p.id, "title": p.title, "text": p.text} for p in action.passages],
            }
            for action in trajectory.actions
        ],
    }


def write_evaluation(file: Path, contents: dict[str, Any]) -> None:
    """The file whole, or not at all."""
    write_text(file, json.dumps(contents, ensure_ascii=False, indent=1) + "\n")


def _measures(file: Path, model: str) -> bool:
    """Whether the file holds an evaluation of `model`: a stage that went on makes those of its earlier end stale. Names
    are compared, because a run folder may have been moved."""
    return file.exists() and Path(json.loads(file.read_text(encoding="utf-8"))["model"]).name == Path(model).name


def _nearest_grpo(run: StageRun) -> GrpoRecipe:
    """The `grpo` stage closest to this one, an earlier one first: what is measured is what was trained."""
    stages = [(abs(index - run.index), index, stage) for index, stage in enumerate(run.recipe.stage)]
    near = sorted(entry[:2] for entry in stages if isinstance(entry[2], GrpoRecipe))
    if not near:
        raise SleuthError(f"stage.{run.index}.env is missing, and the recipe has no grpo stage to take it from")
    stage = run.recipe.stage[near[0][1]]
    assert isinstance(stage, GrpoRecipe)
    return stage


def _env_of_nearest_grpo(run: StageRun) -> SearchEnvRecipe:
    return _nearest_grpo(run).env


def _context_of_nearest_grpo(run: StageRun) -> int:
    return _nearest_grpo(run).context
