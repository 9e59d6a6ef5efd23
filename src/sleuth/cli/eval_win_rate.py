"""`sleuth eval MODEL --win-rate RECIPE`: two models continue the same texts, compared as a recipe compares them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import typer

from sleuth.cli.figures import measured_in, print_figures
from sleuth.cli.heavy import import_heavy
from sleuth.cli.out_file import require_file
from sleuth.cli.recipe_stage import read_stage
from sleuth.types import SleuthError


def evaluate_win_rate(model: str, recipe: Path, against: str | None, out: Path | None, as_json: bool) -> None:
    """Print the figures of the first `win_rate` stage of a recipe for `model` against another one: `against`, or the
    stage's own, or the model that the recipe begins with."""
    from sleuth.model_path import require_model
    from sleuth.recipe import WinRateRecipe

    resolved, stage = read_stage(recipe, WinRateRecipe, "compare as")
    other = against or stage.against or resolved.model
    if not other:
        raise SleuthError(f"{recipe}: begins with random weights; name the other model: --against MODEL")
    for name in (model, other):
        require_model(name)
    if out is not None:
        require_file(out)

    import_heavy()
    from sleuth.evaluation.eval_session import load_named
    from sleuth.evaluation.win_rate import compare_writers
    from sleuth.factories import JudgePool, require_pools
    from sleuth.runs.eval_file import write_eval

    ours, theirs = (load_named(name, resolved) for name in (model, other))
    require_pools(stage, ours.tokenizer, min(ours.max_positions, theirs.max_positions))
    with tempfile.TemporaryDirectory() as folder, JudgePool(Path(folder) / "verdicts.sqlite") as judge_pool:
        contents = {"name": Path(model).name, **compare_writers(stage, ours, theirs, judge_pool, seed=resolved.seed)}
    if out is not None:
        write_eval(out, contents)
    figures = {name: value for name, value in contents.items() if name != "records"}
    if as_json:
        typer.echo(json.dumps(figures))
    else:
        _print(figures)


def _print(figures: dict[str, Any]) -> None:
    print_figures(f"{figures['model']} against {figures['against']}", measured_in(figures))
    typer.echo(
        f"wins {figures['wins']}, ties {figures['ties']}, losses {figures['losses']}, without a verdict "
        f"{figures['no_verdict']}; sign test p = {figures['p']:.2g}; judged by {figures['judged_by']['kind']}"
    )
