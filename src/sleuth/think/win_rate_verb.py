"""`sleuth win-rate`: two models continue the same texts and a judge prefers one, as a recipe's win_rate stage does."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from sleuth.host.threads import PROCESS
from sleuth.terminal.figures import measured_in, print_figures
from sleuth.terminal.heavy import import_heavy
from sleuth.terminal.inputs import load_stage, prepare_out_file, require_inputs
from sleuth.terminal.options import AsJson, Model, NoCode, Out, RecipeFile
from sleuth.types import SleuthError


def win_rate(
    model: Model,
    recipe: RecipeFile,
    against: Annotated[
        str | None,
        typer.Option(metavar="OTHER", help="The other model. [default: the stage's own, or the recipe's model]"),
    ] = None,
    no_code: NoCode = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Compare the continuations of two models, as a recipe says.

    The texts and the judge are those of the recipe's first stage of kind = "win_rate".
    """
    from sleuth.think.preference_tables import WinRateRecipe

    resolved, stage = load_stage(recipe, WinRateRecipe)
    other = against or stage.against or resolved.model
    if not other:
        raise SleuthError(f"{recipe}: begins with random weights; name the other model: --against MODEL")
    require_inputs([model, other])
    prepare_out_file(out)

    import_heavy()
    from sleuth.evaluation.eval_session import load_named
    from sleuth.judges.factory import JudgePool
    from sleuth.runs.eval_file import with_digests, write_eval
    from sleuth.think.candidate_pools import require_pools
    from sleuth.think.win_rate import compare_writers

    ours, theirs = (load_named(name, resolved) for name in (model, other))
    require_pools(stage, ours.tokenizer, min(ours.max_positions, theirs.max_positions))
    PROCESS.announce()
    with tempfile.TemporaryDirectory() as folder, JudgePool(Path(folder) / "verdicts.sqlite") as judge_pool:
        compared = compare_writers(stage, ours, theirs, judge_pool, seed=resolved.seed)
    contents = with_digests({"name": Path(model).name, **compared})
    figures = {name: value for name, value in contents.items() if name != "records"}
    if as_json:
        typer.echo(json.dumps(figures))
    else:
        _print(figures)
    if out is not None:
        write_eval(out, contents)


def _print(figures: dict[str, Any]) -> None:
    print_figures(f"{figures['model']} against {figures['against']}", measured_in(figures))
    typer.echo(
        f"wins {figures['wins']}, ties {figures['ties']}, losses {figures['losses']}, without a verdict "
        f"{figures['no_verdict']}; sign test p = {figures['p']:.2g}; judged by {figures['judged_by']['kind']}"
    )
