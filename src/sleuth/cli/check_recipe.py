"""`sleuth check RECIPE`: what its stages will need, and whether the servers that will write its episodes are well."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from sleuth.cli.heavy import import_heavy
from sleuth.types import SleuthError


def check_recipe(path: Path, as_json: bool, *, weights: bool) -> None:
    """Raises SleuthError where something is missing or does not fit; for a pool, after every server was told of."""
    from sleuth.plan.inputs import missing_inputs
    from sleuth.recipe import TrainingRecipe, load_recipe

    recipe = load_recipe(path, look=missing_inputs)

    import_heavy()
    from sleuth.pipeline import require_inputs
    from sleuth.training.server_pool_check import pool_findings, pooled_stages, send_weights, unhealthy

    require_inputs(recipe)
    steps = sum(stage.last_step for stage in recipe.stage if isinstance(stage, TrainingRecipe))
    found: dict[str, Any] = {"ok": True, "stages": len(recipe.stage), "steps": steps}
    lines = [f"ok: {_count(len(recipe.stage), 'stage')}, {_count(steps, 'step')}"]
    problem = None
    pooled = pooled_stages(recipe) if recipe.model else []
    if weights and not pooled:
        raise SleuthError("--weights is for a recipe in which servers write: a stage with an [stage.engine] block")
    for index in pooled:
        name = f"stage.{index} ({recipe.stage[index].name})"
        findings = pool_findings(recipe, index)
        found.setdefault("pools", {})[recipe.stage[index].name] = [asdict(finding) for finding in findings]
        lines += [
            f"{'ok' if finding.ok else 'problem'}: {name}: {finding.url}: {finding.line} ({finding.seconds:.1f} s)"
            for finding in findings
        ]
        if (wrong := unhealthy(findings)) is not None:
            problem = problem or f"{name}: {wrong}"
        elif weights:
            seconds = send_weights(recipe, index)
            lines.append(f"ok: {name}: all took the model's weights, and write with them ({seconds:.1f} s)")
            found["seconds_weights"] = seconds
    if problem is not None:
        found["ok"] = False
    typer.echo(json.dumps(found) if as_json else "\n".join(lines))
    if problem is not None:
        raise SleuthError(problem)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
