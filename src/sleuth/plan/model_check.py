"""All checks of one model, and of the recipe that is to train it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from sleuth.cite.dialect import ANSWER_ONLY
from sleuth.dialect import DIALECTS
from sleuth.episodes.protocol import ProtocolCard
from sleuth.learn.models import WORKING, family_problem
from sleuth.plan.model_files import Finding, ModelFiles, listed, load_files
from sleuth.plan.model_template import BoundedTemplate, template_findings
from sleuth.recipe import Recipe
from sleuth.render import check_writable, encode
from sleuth.search.dialects import TOOLS_TEXT
from sleuth.types import SleuthError

SHOWN_TAGS = 4


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
    found = examine(files)
    try:
        ProtocolCard.read(Path(files.name))
    except SleuthError as error:
        fix = "copy the checkpoint again, or remove the file and name the dialect of each evaluation"
        found.append(Finding("protocol", "problem", str(error), fix))
    return found


def examine(files: ModelFiles) -> list[Finding]:
    """What is found of a model's files."""
    found = [*_config_findings(files)]
    source = files.tokenizer.chat_template
    if isinstance(source, dict):
        names = listed([str(name) for name in source])
        line = f"the tokenizer has several chat templates ({names}), and which one is meant depends on the caller"
        fix = "keep one: set tokenizer.chat_template to its text and save the tokenizer"
        found.append(Finding("template", "problem", line, fix))
    elif not source:
        fix = 'use prompt_role = "raw" and a dialect of plain text, or copy the template of its instructed sibling'
        found.append(Finding("template", "warning", "there is no chat template: a base model", fix))
    else:
        found += template_findings(files, BoundedTemplate(source, files.tokenizer))
    return [*found, tag_finding(files.tokenizer)]


def _config_findings(files: ModelFiles) -> Iterator[Finding]:
    if files.config is None:
        line = f"this transformers cannot read its config: {files.config_problem}"
        fix = "give it a config.json with a model_type that transformers has, or install the version its card names"
        yield Finding("config", "warning", line, fix)
    elif problem := family_problem(files.config):
        yield Finding("family", "problem", problem, WORKING)
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
    dialects = (*DIALECTS.values(), TOOLS_TEXT, ANSWER_ONLY)
    tags = list(dict.fromkeys(tag for dialect in dialects for tag in dialect.tags))
    if unwritable := [tag for tag in tags if not _writable(tokenizer, tag)]:
        fix = "use a tokenizer with bytes as a fallback"
        return Finding("tags", "problem", f"the tokenizer cannot write {listed(unwritable)}", fix)
    if several := [tag for tag in tags if len(encode(tokenizer, tag)) > 1]:
        some = ", ".join([*several[:SHOWN_TAGS], *["..."][: len(several) - SHOWN_TAGS]])
        return Finding(
            "tags", "ok", f"of {len(tags)} tags of Sleuth's dialects {len(several)} are several tokens ({some})"
        )
    return Finding("tags", "ok", f"all {len(tags)} tags of Sleuth's dialects are one token each")


def _writable(tokenizer: PreTrainedTokenizerFast, tag: str) -> bool:
    try:
        check_writable(tokenizer, [tag])
    except SleuthError:
        return False
    return True
