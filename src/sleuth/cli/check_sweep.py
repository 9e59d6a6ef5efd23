"""`sleuth check SWEEP`: what a table of arms will need, and how much of it is trained once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sleuth.cli.heavy import import_heavy
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.recipe import Recipe


def check_sweep(path: Path, as_json: bool) -> None:
    """Raises SleuthError where something is missing or does not fit."""
    from sleuth.plan.inputs import missing_inputs
    from sleuth.recipe.sweep import load_sweep, unshared_steps

    recipe, runs = load_sweep(path, look=missing_inputs)
    require_inputs_of_sweep(path, runs)
    steps, seeds = sum(unshared_steps(runs).values()), len(recipe.seeds)
    if as_json:
        typer.echo(json.dumps({"ok": True, "arms": len(runs), "seeds": seeds, "steps": steps * seeds}))
    else:
        typer.echo(
            f"ok: {len(runs)} arms with {seeds} seeds, {steps * seeds:,} steps; what arms begin with is counted once"
        )


def require_inputs_of_sweep(path: Path, runs: Mapping[str, Recipe]) -> None:
    """Read all that the arms will need. Raises SleuthError, which names the arm."""
    import_heavy()
    from sleuth.pipeline import require_inputs

    for name, run in runs.items():
        try:
            require_inputs(run)
        except SleuthError as error:
            raise SleuthError(f'{path}: arm "{name}": {error}') from None
