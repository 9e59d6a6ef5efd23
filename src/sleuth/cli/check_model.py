"""`sleuth check model`: what a model's tokenizer and chat template do to tool calls, thoughts and histories."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sleuth.terminal.options import AsJson, Model, NoCode
from sleuth.training.heavy import import_heavy


def check_model(
    model: Model,
    recipe: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also check that this recipe's prompts, scorers and budgets fit."),
    ] = None,
    no_code: NoCode = False,
    as_json: AsJson = False,
) -> None:
    """Check a model's chat template, tool calls, tags and stop tokens.

    Reads its tokenizer and configs, never its weights, and prints a line for each finding with what would be right.
    Exit status 1 if one is a problem.
    """
    from sleuth.host.model_path import require_model
    from sleuth.recipe import load_recipe

    require_model(model)
    resolved = None
    if recipe is not None:
        resolved = load_recipe(recipe)
    import_heavy()

    from sleuth.plan.model_check import findings_of

    began = time.monotonic()
    findings = findings_of(model, resolved)
    seconds = time.monotonic() - began
    count = Counter(finding.level for finding in findings)
    if as_json:
        found = {"model": model, "ok": not count["problem"], "seconds": round(seconds, 1)}
        typer.echo(json.dumps(found | {"findings": [asdict(finding) for finding in findings]}))
    else:
        for finding in findings:
            typer.echo(str(finding))
        typer.echo(f"{_count(count['problem'], 'problem')}, {_count(count['warning'], 'warning')} ({seconds:.1f} s)")
    if count["problem"]:
        raise typer.Exit(1)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
