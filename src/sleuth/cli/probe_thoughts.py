"""`sleuth probe MODEL --thoughts RECIPE`: whether a model's thoughts are of use, as a recipe probes them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import typer

from sleuth.cli.figures import cell, measured_in
from sleuth.cli.heavy import import_heavy
from sleuth.cli.out_file import require_file
from sleuth.cli.recipe_stage import read_stage

ARMS = ("sampled", "blank", "generic", "swapped", "within", "teacher")


def probe_thoughts(model: str, recipe: Path, limit: int | None, out: Path | None, as_json: bool) -> None:
    """Print the figures of the first `probe` stage of a recipe for `model`, and leave the certificate in its folder.
    `limit` takes fewer places than the recipe does."""
    from sleuth.model_path import require_model
    from sleuth.recipe import ProbeRecipe

    resolved, stage = read_stage(recipe, ProbeRecipe, "probe as")
    require_model(model)
    if limit is not None:
        stage = stage.model_copy(update={"data": stage.data.model_copy(update={"limit": limit})})
    if out is not None:
        require_file(out)

    import_heavy()
    from sleuth.evaluation.certificate import write_certificate
    from sleuth.evaluation.eval_session import load_named
    from sleuth.evaluation.thought_probe import probe_thoughts as probe_model
    from sleuth.evaluation.thought_probe import require_spots
    from sleuth.factories import JudgePool
    from sleuth.runs.eval_file import write_eval

    thinker = load_named(model, resolved)
    require_spots(stage, thinker.tokenizer, thinker.max_positions)
    with tempfile.TemporaryDirectory() as folder, JudgePool(Path(folder) / "verdicts.sqlite") as judge_pool:
        contents = {"name": Path(model).name, **probe_model(stage, thinker, judge_pool, seed=resolved.seed)}
    kept = write_certificate(model, contents)
    if out is not None:
        write_eval(out, contents)
    figures = {name: value for name, value in contents.items() if name != "records"}
    if as_json:
        typer.echo(json.dumps(figures))
    else:
        _print(figures, kept)


def _print(figures: dict[str, Any], kept: Path | None) -> None:
    """A line an arm: what it gained, by how much the model's own beats it, and which suffixes came to the true one."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    measured = measured_in(figures)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("arm", "gain", "own over it", "right", "own over it", "n"):
        table.add_column(heading, justify="left" if heading == "arm" else "right", no_wrap=True)
    for arm in ARMS:
        named = [measured.get(f"{name}_{arm}") for name in ("gain", "over", "right", "right_over")]
        count = next((one.n for one in named if one), None)
        if count:
            table.add_row(arm, *map(cell, named), f"{count:,}")
    typer.echo(f"thoughts of {figures['model']}, in nats a token of the true suffix")
    Console().print(table)
    left = measured["blank_nll"].told()
    typer.echo(f"An empty thought leaves {left} to gain. Intervals are of 95 %, over documents.")
    needed = {name: count for name, count in figures["documents_needed"].items() if count}
    counts = ", ".join(f"{name} {count:,}" for name, count in needed.items())
    typer.echo(f"Documents that would show differences of this size, in four of five cases: {counts or 'not known'}.")
    certificate = figures["certificate"]
    typer.echo(f"{'PASS' if certificate['passes'] else 'No certificate'}: {certificate['claim']}.")
    if kept is not None:
        typer.echo(f"{kept}: the certificate")
