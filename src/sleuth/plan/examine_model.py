"""All checks of one model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sleuth.episodes.protocol import ProtocolCard
from sleuth.learn.model_families import WORKING, family_problem
from sleuth.plan.model_bounded_template import BoundedTemplate, TemplateLimitError, TemplateRefusedError
from sleuth.plan.model_files import ModelFiles, load_files
from sleuth.plan.model_finding import Finding, listed
from sleuth.plan.model_template import template_findings
from sleuth.plan.model_tokens import tag_findings
from sleuth.recipe import Recipe
from sleuth.types import SleuthError


def findings_of(model: str, recipe: Recipe | None = None) -> list[Finding]:
    """What is found of a model's folder or hub id, and of a `recipe` with it. Reads no weights and runs no code that
    comes with the model, except its chat template, in a sandbox with limits.

    Raises SleuthError if there is no model, or nothing to check in the recipe.
    """
    if recipe is None:
        return _examined(load_files(model))
    from sleuth.plan.model_recipe_fit import recipe_findings, rendering_stages  # takes seconds to import

    rendering_stages(recipe)
    files = load_files(model)
    found = _examined(files)
    if any(one.check == "template" and one.level == "problem" for one in found):
        return found
    return [*found, *recipe_findings(files, recipe)]


def _examined(files: ModelFiles) -> list[Finding]:
    return [*examine(files), *_protocol_findings(Path(files.name))]


def _protocol_findings(folder: Path) -> Iterator[Finding]:
    try:
        ProtocolCard.read(folder)
    except SleuthError as error:
        fix = "copy the checkpoint again, or remove the file and name the dialect of each evaluation"
        yield Finding(check="protocol", level="problem", line=str(error), fix=fix)


def examine(files: ModelFiles) -> list[Finding]:
    """What is found of a model's files."""
    found = [*_config_findings(files)]
    source = files.tokenizer.chat_template
    if isinstance(source, str) and source:
        found += _template_findings(files, BoundedTemplate(source, files.tokenizer))
    else:
        found.append(_no_template(source))
    return [*found, *tag_findings(files.tokenizer)]


def _config_findings(files: ModelFiles) -> Iterator[Finding]:
    if files.config is None:
        line = f"this transformers cannot read its config: {files.config_problem}"
        fix = "give it a config.json with a model_type that transformers has, or install the version its card names"
        yield Finding(check="config", level="warning", line=line, fix=fix)
    elif problem := family_problem(files.config):
        yield Finding(check="family", level="problem", line=problem, fix=WORKING)
    if files.context is not None:
        yield Finding(check="context", level="ok", line=f"the model was made for {files.context:,} tokens")
    elif files.config is not None:
        fix = "set context in the recipe to what the model was trained with"
        yield Finding(check="context", level="warning", line="the config names no longest sequence", fix=fix)
    if files.generation_problem:
        line = f"generation_config.json cannot be used: {files.generation_problem}"
        yield Finding(check="generation config", level="problem", line=line, fix="fix the file, or remove it")


def _no_template(source: object) -> Finding:
    if isinstance(source, dict):
        names = listed([str(name) for name in source])
        return Finding(
            check="template",
            level="problem",
            line=f"the tokenizer has several chat templates ({names}), and which one is meant depends on the caller",
            fix="keep one: set tokenizer.chat_template to its text and save the tokenizer",
        )
    return Finding(
        check="template",
        level="warning",
        line="there is no chat template: a base model",
        fix='use prompt_role = "raw" and a dialect of plain text, or copy the template of its instructed sibling',
    )


def _template_findings(files: ModelFiles, template: BoundedTemplate) -> Iterator[Finding]:
    try:
        yield from template_findings(files, template)
    except TemplateLimitError as limit:
        line, fix = f"rendering was stopped: {limit}", "do not use this template: it can stop a trainer or a server"
        yield Finding(check="template", level="problem", line=line, fix=fix)
    except TemplateRefusedError as error:
        line = f"it cannot render a conversation of several turns: {error}"
        fix = 'fix the template, or use prompt_role = "raw"'
        yield Finding(check="template", level="problem", line=line, fix=fix)
