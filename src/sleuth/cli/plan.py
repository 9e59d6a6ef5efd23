"""`sleuth plan`: predicts what a run will need, before it begins."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from sleuth.cli.heavy import import_heavy
from sleuth.cli.inputs import require_unset
from sleuth.cli.options import AsJson, RecipeFile
from sleuth.cli.tables import Column, print_columns
from sleuth.memory import total_host_memory
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.plan.plan import Plan
    from sleuth.recipe import Recipe

HEADINGS = {"seconds": "time", "seconds_at_most": "at most"}
"""Of columns that are not called what they hold."""
TRAIN = (sys.executable, "-c", "from sleuth.cli.app import app; app()", "train")


def plan(
    recipe: RecipeFile,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one value, as in `sleuth train`.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", metavar="DIR", help="The run folder to be. [default: runs/NAME]")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--probe", min=0, metavar="STEPS", help="Steps of each stage to run; 0 only counts. [default: 12]"
        ),
    ] = None,
    world: Annotated[
        int | None,
        typer.Option("--ranks", min=1, metavar="N", help="Predict the memory of each of N ranks. [default: 1]"),
    ] = None,
    card: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help='Compute whether the recipe fits this card, such as h100-80, "8 x a100-40" or 24GB, and run nothing; '
            "cpu: this machine's memory.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict a recipe's steps, tokens, time, memory and disk.

    Runs the first steps of every stage in a temporary folder, in a process of their own, and extrapolates. With --card,
    runs nothing and needs no data: computes the bytes of each phase from the shape of the model.
    """
    from sleuth.plan.inputs import missing_inputs
    from sleuth.recipe import load_recipe

    if card is not None:
        reason = "is for a probe of the first steps, and --card runs nothing: leave one of them out"
        require_unset({"--probe": steps, "--run": run}, reason)
        _plan_card(load_recipe(recipe, overrides or ()), card, world, as_json=as_json)
        return
    steps, world = 12 if steps is None else steps, world or 1
    resolved = load_recipe(recipe, overrides or (), missing_inputs)

    import_heavy()
    from sleuth.cli.progress import progress_bar
    from sleuth.pipeline import require_inputs, require_ranks
    from sleuth.plan.plan import plan_of
    from sleuth.plan.probe import run_probe, shortened
    from sleuth.ranks import Ranks

    require_ranks(resolved, Ranks(world=world))
    place = run or Path("runs") / resolved.name
    questions = {index: len(tasks) for index, tasks in require_inputs(resolved).items()}
    probe = None
    if steps:
        disk = next(path for path in place.absolute().parents if path.exists())  # that of the run: its speed matters
        with TemporaryDirectory(prefix="sleuth-plan-", dir=disk) as folder, progress_bar("probe") as progress:
            probe = run_probe(shortened(resolved, steps, world=world), TRAIN, Path(folder), progress)
    predicted = plan_of(resolved, questions, probe, world=world)
    if as_json:
        typer.echo(json.dumps(predicted.as_json()))
    else:
        _print_stages(predicted)
        _print_peaks(predicted, place)


def _plan_card(recipe: Recipe, card: str, world: int | None, *, as_json: bool) -> None:
    from sleuth.cli.plan_card import print_card_plan
    from sleuth.hardware import Cards, read_cards
    from sleuth.plan.fit import plan_for_cards, plan_for_cpu

    if card == "cpu":
        if world not in (None, 1):
            raise SleuthError(f"--card cpu is for one process; leave --ranks {world} out")
        predicted = plan_for_cpu(recipe, total_host_memory())
    else:
        try:
            cards = read_cards(card)
        except ValueError as error:
            raise SleuthError(f"--card {card}: {error}") from None
        count = world or cards.count
        if count > 1:
            import_heavy()
            from sleuth.pipeline import require_ranks
            from sleuth.plan.server_cards import ranks_and_servers
            from sleuth.ranks import Ranks

            require_ranks(recipe, Ranks(world=ranks_and_servers(recipe, count)[0]))
        predicted = plan_for_cards(recipe, Cards(count=count, card=cards.card))
    if as_json:
        typer.echo(json.dumps(predicted.as_json()))
    else:
        print_card_plan(predicted)


def _print_stages(predicted: Plan) -> None:
    shown = {"steps": _count, "episodes": _count, "tokens": _count, "judge_calls": _count, "seconds": _duration}
    columns = [
        Column(
            heading=HEADINGS.get(key, key.replace("_", " ")),
            cells=[show(getattr(stage, key)) for stage in predicted.stages],
            footer=show(predicted.total(key)),
        )
        for key, show in (shown | {"seconds_at_most": _duration}).items()
    ]
    print_columns([stage.name for stage in predicted.stages], columns, heading="stage", footer="in all")
    for step in predicted.step_calls:
        typer.echo(step.line())


def _print_peaks(predicted: Plan, place: Path) -> None:
    """Peak memory and disk, beside what this machine has."""
    from sleuth.runs.disk import free_bytes, shown

    if predicted.peak_memory_bytes is None or predicted.peak_disk_bytes is None:
        typer.echo("time, tokens, memory and disk are known after a probe: leave out --probe 0")
        return
    typer.echo(f"memory at its peak  {shown(predicted.peak_memory_bytes)} of {shown(total_host_memory())}")
    if predicted.peak_gpu_memory_bytes:
        typer.echo(f"of the GPU          {shown(predicted.peak_gpu_memory_bytes)}")
    if predicted.ranks is not None:
        typer.echo(f"of {predicted.ranks.world} ranks, each    {shown(predicted.ranks.each)}")
        if predicted.peak_gpu_memory_bytes:
            typer.echo(f"each, of its host   {shown(predicted.ranks.host)}")
        typer.echo(f"the first, saving   {shown(predicted.ranks.first)} of its host's memory")
    typer.echo(f"disk at its peak    {shown(predicted.peak_disk_bytes)}; {shown(free_bytes(place))} are free there")


def _count(number: float | None) -> str:
    return "" if number is None else f"{number:,.0f}"


def _duration(seconds: float | None) -> str:
    """`0:05:31`: hours, minutes, seconds."""
    return "" if seconds is None else str(timedelta(seconds=round(seconds)))
