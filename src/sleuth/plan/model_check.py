"""All checks of one model, and whether the prompts, scorers and budgets of a recipe that is to train it fit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from sleuth import family
from sleuth.answers.answer import answer_reward_of
from sleuth.answers.factory import scorer_warnings
from sleuth.dialect import DIALECTS
from sleuth.episodes.protocol import ProtocolCard
from sleuth.episodes.setting import Setting, trial_group
from sleuth.learn.models import WORKING, family_problem, plain_line, plain_reason
from sleuth.own.permission import CodeRefusedError
from sleuth.plan.model_files import Finding, ModelFiles, listed, load_files
from sleuth.plan.model_template import BoundedTemplate, template_findings
from sleuth.recipe import Recipe
from sleuth.recipe.envs import RenderedEnvFields
from sleuth.render import check_writable, encode
from sleuth.types import Evidence, Group, Passage, SleuthError, Task

SHOWN_TAGS = 4
TASK = Task(
    id="invented",
    question="Where was Ada Voss born?",
    golden_answers=("Tarn",),
    evidence=Evidence(
        reasoning="I need her birthplace.",
        output="<snippet id=a1>Ada Voss was born in Tarn.</snippet>",
        snippets=(Passage(id="a1", title="", text="Ada Voss was born in Tarn."),),
    ),
)
"""Stands for the recipe's questions, which are not read."""


def findings_of(model: str, recipe: Recipe | None = None) -> list[Finding]:
    """What is found of a model's folder or hub id, and of a `recipe` with it. Reads no weights and runs no code that
    comes with the model, except its chat template, in a sandbox with limits.

    Raises SleuthError if there is no model, or nothing to check in the recipe.
    """
    if recipe is not None:
        rendering_stages(recipe)
    files = load_files(model)
    findings = examine(files)
    try:
        ProtocolCard.read(Path(files.name))
    except SleuthError as error:
        fix = "copy the checkpoint again, or remove the file and name the dialect of each evaluation"
        findings.append(Finding("protocol", "problem", str(error), fix))
    if recipe is None or any(one.check == "template" and one.level == "problem" for one in findings):
        return findings
    return [*findings, *recipe_findings(files, recipe)]


def examine(files: ModelFiles) -> list[Finding]:
    """What is found of a model's files."""
    findings = [*_config_findings(files)]
    source = files.tokenizer.chat_template
    if isinstance(source, dict):
        names = listed([str(name) for name in source])
        line = f"the tokenizer has several chat templates ({names}), and which one is meant depends on the caller"
        fix = "keep one: set tokenizer.chat_template to its text and save the tokenizer"
        findings.append(Finding("template", "problem", line, fix))
    elif not source:
        fix = 'use prompt_role = "raw" and a dialect of plain text, or copy the template of its instructed sibling'
        findings.append(Finding("template", "warning", "there is no chat template: a base model", fix))
    else:
        findings += template_findings(files, BoundedTemplate(source, files.tokenizer))
    return [*findings, tag_finding(files.tokenizer)]


def _config_findings(files: ModelFiles) -> Iterator[Finding]:
    if files.config is None:
        line = f"this transformers cannot read its config: {files.config_problem}"
        fix = "give it a config.json with a model_type that transformers has, or install the version its card names"
        yield Finding("config", "warning", line, fix)
    elif problem := family_problem(files.config):
        yield Finding("family", "problem", problem, WORKING)
    elif line := plain_line(files.config):
        served = 'let servers sample: [stage.engine] launch = "vllm"'
        yield Finding("family", "warning", line, served if plain_reason(files.config, trains=False) else "")
    else:
        yield Finding("family", "ok", "prefix trees and the paged cache compute it")
    if files.context is not None:
        yield Finding("context", "ok", f"the model was made for {files.context:,} tokens")
    elif files.config is not None:
        fix = "set context in the recipe to what the model was trained with"
        yield Finding("context", "warning", "the config names no longest sequence", fix)
    if files.generation_problem:
        line = f"generation_config.json cannot be used: {files.generation_problem}"
        yield Finding("generation config", "problem", line, "fix the file, or remove it")


def tag_finding(tokenizer: PreTrainedTokenizerFast) -> Finding:
    """Whether the tokenizer can write each tag of our dialects, and as how many tokens."""
    dialects = (*DIALECTS.values(), *family.other_dialects())
    tags = list(dict.fromkeys(tag for dialect in dialects for tag in dialect.tags))
    unwritable = []
    for tag in tags:
        try:
            check_writable(tokenizer, [tag])
        except SleuthError:
            unwritable.append(tag)
    if unwritable:
        fix = "use a tokenizer with bytes as a fallback"
        return Finding("tags", "problem", f"the tokenizer cannot write {listed(unwritable)}", fix)
    if several := [tag for tag in tags if len(encode(tokenizer, tag)) > 1]:
        some = ", ".join([*several[:SHOWN_TAGS], *["..."][: len(several) - SHOWN_TAGS]])
        line = f"of {len(tags)} tags of Sleuth's dialects {len(several)} are several tokens ({some})"
        return Finding("tags", "ok", line)
    return Finding("tags", "ok", f"all {len(tags)} tags of Sleuth's dialects are one token each")


# -- a recipe that is to train it --------------------------------------------------------------------------------------


def rendering_stages(recipe: Recipe) -> list[int]:
    """The indices of the stages whose environment renders prompts. Raises SleuthError if there are none."""
    stages = [at for at, stage in enumerate(recipe.stage) if isinstance(getattr(stage, "env", None), RenderedEnvFields)]
    if not stages:
        raise SleuthError(f"{recipe.name}: no stage has an environment that renders prompts; leave --recipe out")
    return stages


def recipe_findings(files: ModelFiles, recipe: Recipe) -> Iterator[Finding]:
    """A line or more on each stage whose environment renders prompts."""
    for index in rendering_stages(recipe):
        stage: Any = recipe.stage[index]
        check, env = f"stage.{index} ({stage.name})", stage.env.without_retriever()
        context = stage.context or files.context
        try:
            setting = env.setting(files.tokenizer, [TASK] if env.plays == "refiner" else [])
            trial = trial_group(setting, TASK, files.tokenizer, context or 1 << 20)
        except CodeRefusedError:
            raise
        except SleuthError as error:
            fix = "change the recipe's prompt_role, dialect or template_flags, or train another model"
            yield Finding(check, "problem", str(error), fix)
            continue
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
    longest = setting.longest_answer
    line = f"the prompt takes {prompt:,} of context = {context:,} tokens and leaves {left:,}"
    if left < longest:
        fix = f"raise context, or lower {setting.longest_answer_key}"
        yield Finding(check, "problem", f"{line}, less than one turn of {longest:,}", fix)
    else:
        yield Finding(check, "ok", line)
