"""`sleuth eval MODEL --reasoning RECIPE`: problems answered several times each, as a recipe's stage does."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from sleuth.cli.figures import measured_in, print_figures
from sleuth.cli.heavy import import_heavy
from sleuth.cli.out_file import require_file
from sleuth.cli.recipe_stage import read_stage


def evaluate_reasoning(model: str, recipe: Path, out: Path | None, as_json: bool) -> None:
    """Print the figures of the first `reason` stage of a recipe for `model`, set by set and their means."""
    from sleuth.model_path import require_model
    from sleuth.recipe import ReasonRecipe

    resolved, stage = read_stage(recipe, ReasonRecipe, "ask as")
    require_model(model)
    if out is not None:
        require_file(out)

    import_heavy()
    from sleuth.evaluation.eval_session import load_named
    from sleuth.evaluation.reasoning import require_problems, solve_problems
    from sleuth.runs.eval_file import write_eval

    solver = load_named(model, resolved)
    require_problems(stage, solver.tokenizer, solver.max_positions)
    found = solve_problems(stage, solver, seed=resolved.seed)
    *_, suite = found
    for name, contents in found.items() if out is not None else ():
        assert out is not None
        place = out if name == suite else out.with_name(f"{out.stem}@{name.partition('@')[2]}.json")
        write_eval(place, {"name": name, **contents})
    if as_json:
        typer.echo(json.dumps({"name": Path(model).name, **found[suite]}))
        return
    for name, contents in found.items():
        print_figures(f"{model}, {name}", measured_in(contents))
