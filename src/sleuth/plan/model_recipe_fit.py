"""Whether a recipe's prompts, scorers and budgets fit a model's tokenizer, chat template and context."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from sleuth.answers.answer import answer_reward_of
from sleuth.answers.factory import scorer_warnings
from sleuth.dialect import Dialect
from sleuth.episodes.setting import Setting, trial_group
from sleuth.own.permission import CodeRefusedError
from sleuth.plan.model_files import Finding, ModelFiles
from sleuth.recipe import Recipe
from sleuth.recipe.envs import RenderedEnvFields
from sleuth.types import Evidence, Group, Passage, SleuthError, Task

QUESTION = "Where was Ada Voss born?"
OUTPUT = "<snippet id=a1>Ada Voss was born in Tarn.</snippet>"
TASK = Task(
    id="invented",
    question=QUESTION,
    golden_answers=("Tarn",),
    evidence=Evidence(
        reasoning="I need her birthplace.",
        output=OUTPUT,
        snippets=(Passage(id="a1", title="", text="Ada Voss was born in Tarn."),),
    ),
)
"""Stands for the recipe's questions, which are not read."""


def rendering_stages(recipe: Recipe) -> list[int]:
    """The indices of the stages whose environment renders prompts. Raises SleuthError if there are none."""
    stages = [at for at, stage in enumerate(recipe.stage) if isinstance(getattr(stage, "env", None), RenderedEnvFields)]
    if not stages:
        raise SleuthError(f"{recipe.name}: no stage has an environment that renders prompts; leave --recipe out")
    return stages


def recipe_findings(files: ModelFiles, recipe: Recipe) -> Iterator[Finding]:
    """A line or more on each stage whose environment renders prompts."""
    for index in rendering_stages(recipe):
        yield from _stage_findings(files, recipe, index)


def _stage_findings(files: ModelFiles, recipe: Recipe, index: int) -> Iterator[Finding]:
    stage: Any = recipe.stage[index]
    check = f"stage.{index} ({stage.name})"
    env = stage.env.without_retriever()
    context = stage.context or files.context
    try:
        setting = env.setting(files.tokenizer, [TASK] if env.plays == "refiner" else [])
        trial = trial_group(setting, TASK, files.tokenizer, context or 1 << 20)
    except CodeRefusedError:
        raise
    except SleuthError as error:
        fix = "change the recipe's prompt_role, dialect or template_flags, or train another model"
        yield Finding(check, "problem", str(error), fix)
        return
    yield from _scorer_findings(files, stage, setting, trial, check)
    yield from _room_findings(files, setting, trial, context, check)


def _scorer_findings(files: ModelFiles, stage: Any, setting: Setting, trial: Group, check: str) -> Iterator[Finding]:
    """What the scorers of answers give a right one, as text by themselves, and through tokens in a whole episode."""
    rewards: Sequence[Any] = getattr(stage, "reward", ())
    fix = "choose a prompt, a dialect and a scorer of one system"
    scorers = list(dict.fromkeys(scorer for one in rewards if (scorer := one.answer_scorer)))
    warnings = scorer_warnings(scorers, setting)
    for line in warnings:
        yield Finding(check, "problem", line, fix)
    for scorer in scorers if not warnings else ():
        reward = answer_reward_of(scorer, setting.dialect, files.tokenizer)
        score = asyncio.run(reward(trial))[0]
        if score.value is None or score.value < 1:
            line = f"the scorer {scorer} pays a right answer {score.value if score.value is not None else 'nothing'}"
            yield Finding(check, "problem", f"{line}, not 1: {score.note}", fix)
        else:
            yield Finding(check, "ok", f"the scorer {scorer} pays a right answer 1, through this template")


def _room_findings(
    files: ModelFiles, setting: Setting, trial: Group, context: int | None, check: str
) -> Iterator[Finding]:
    if context is None:
        return
    if files.context is not None and context > files.context:
        line = f"context = {context:,} is more than the {files.context:,} that the model was made for"
        yield Finding(check, "problem", line, f"set context = {files.context}")
    segments = trial.episodes[0].trajectory.segments
    first = next(at for at, segment in enumerate(segments) if segment.author == "policy")
    prompt = sum(len(segment.tokens) for segment in segments[:first])
    left = context - prompt
    line = f"the prompt takes {prompt:,} of context = {context:,} tokens and leaves {left:,}"
    if left < setting.longest_answer:
        fix = f"raise context, or lower {setting.longest_answer_key}"
        yield Finding(check, "problem", f"{line}, less than one turn of {setting.longest_answer:,}", fix)
    else:
        most = most_tokens(setting.dialect)
        follows = "no limit on what follows" if most is None else f"at most {most:,} follow"
        yield Finding(check, "ok", f"{line}; {follows}")


def most_tokens(dialect: Dialect) -> int | None:
    """How many tokens may follow a prompt, without tags: `1568` for 4 turns of 32 and 3 results of 480. None if neither
    the recipe nor its dialect limits them."""
    if dialect.response_tokens is not None:
        return dialect.response_tokens
    limits = [dialect.turns, None if dialect.searches is None else dialect.searches + 1]
    turns = min((limit for limit in limits if limit), default=None)
    results = dialect.results_tokens or (dialect.passage_tokens or 0) * dialect.top_k
    if turns is None or (turns > 1 and not results):
        return None
    return turns * dialect.turn_tokens + (turns - 1) * results
