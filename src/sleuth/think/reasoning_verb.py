"""`sleuth reasoning`: a model answers problems several times each, as the reason stage of a recipe does."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from sleuth.host.threads import PROCESS
from sleuth.terminal.figures import measured_in, print_figures
from sleuth.terminal.heavy import import_heavy
from sleuth.terminal.inputs import load_stage, prepare_out_file, require_inputs
from sleuth.terminal.options import AsJson, Model, NoCode, Out, RecipeFile


def reasoning(
    model: Model, recipe: RecipeFile, no_code: NoCode = False, out: Out = None, as_json: AsJson = False
) -> None:
    """Ask a model problems, several answers to each.

    The problems, samples and answers are those of the recipe's first stage of kind = "reason". Prints the figures of
    each set and their means; --out writes each set beside FILE.json, as FILE@SET.json.
    """
    from sleuth.think.stage_tables import ReasonRecipe

    resolved, stage = load_stage(recipe, ReasonRecipe)
    require_inputs([model])
    prepare_out_file(out)

    import_heavy()
    from sleuth.evaluation.eval_session import load_named
    from sleuth.runs.eval_file import with_digests, write_eval
    from sleuth.think.reasoning import require_problems, solve_problems

    solver = load_named(model, resolved)
    require_problems(stage, solver.tokenizer, solver.max_positions)
    PROCESS.announce()
    found = solve_problems(stage, solver, seed=resolved.seed)
    *_, suite = found
    found = {name: with_digests(contents) for name, contents in found.items()}
    for name, contents in found.items() if out is not None else ():
        assert out is not None
        place = out if name == suite else out.with_name(f"{out.stem}@{name.partition('@')[2]}.json")
        write_eval(place, {"name": name, **contents})
    if as_json:
        typer.echo(json.dumps({"name": Path(model).name, **found[suite]}))
        return
    for name, contents in found.items():
        print_figures(f"{model}, {name}", measured_in(contents))
