"""`sleuth rescore`: scores a run's rollouts under another reward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sleuth.terminal.heavy import import_heavy
from sleuth.terminal.options import AsJson, NoCode
from sleuth.terminal.tables import Column, print_columns
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.evaluation.intervals import Measured
    from sleuth.training.rescoring import Rescored


def rescore(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)],
    reward: Annotated[
        Path, typer.Option(metavar="NEW.toml", help="A file of [[reward]] tables, as in a recipe.", show_default=False)
    ],
    no_code: NoCode = False,
    as_json: AsJson = False,
) -> None:
    """Score a run's rollouts again under another reward.

    Prints how far the two rewards agree. Nothing is generated. A judge's verdicts are taken from the run and only
    missing ones are asked for; where only weights differ, no call is made.
    """
    from sleuth.recipe.parts import load_rewards
    from sleuth.recipe.rewards import unfit_rewards
    from sleuth.runs.recipe_inputs import missing_inputs
    from sleuth.runs.run_folder import RunFolder

    rewards = load_rewards(reward, missing_inputs)
    folder = RunFolder.look(run)

    import_heavy()
    from sleuth.cli.pipeline import trained_stages
    from sleuth.recipe.grpo import GrpoRecipe
    from sleuth.terminal.progress import progress_bar
    from sleuth.training.rescoring import rescore as rescore_stage

    played = folder.recipe.stages_of(GrpoRecipe)
    stages = [one for one in trained_stages(folder.recipe, folder) if one.index in played]
    if not stages:
        raise SleuthError(f"{run}: has no GRPO stage, so there are no rollouts to score")
    unfit = [(one.stage.name, line) for one in stages for line in unfit_rewards(rewards, played[one.index].env)]
    if unfit:
        raise SleuthError(*(f"{reward}: {line}, as in stage {name} of {run}" for name, line in unfit))
    with progress_bar("rescore") as progress:
        found = [
            rescore_stage(stage, rewards, progress=progress, warn=lambda line: typer.echo(f"note: {line}", err=True))
            for stage in stages
        ]
    if as_json:
        typer.echo(json.dumps({"stages": [one.as_json() for one in found]}))
        return
    for one in found:
        _print(one, reward)


def _print(found: Rescored, reward: Path) -> None:
    from sleuth.runs.progress import Console

    console = Console()
    console.print(f"{found.stage}: {found.episodes:,} episodes in {found.groups:,} groups of {found.steps:,} steps")
    columns = [
        Column(
            heading=heading,
            cells=["none" if one.mean is None else f"{one.mean:.3f}", f"{one.missing:,}", _shown(one.signal)],
        )
        for heading, one in (("as it was", found.before), (f"under {reward}", found.after))
    ]
    print_columns(["mean score", "without a score", "groups with signal"], columns)
    console.print(f"Kendall's tau-b of siblings  {_shown(found.within)}, of {found.within.n:,} questions")
    console.print(f"of all episodes              {'none' if found.overall is None else f'{found.overall:.2f}'}")
    console.print(f"the same sibling is best in  {_shown(found.same_best)} of groups")
    if found.judge:
        console.print(f"judge                        {found.judge['judge_asked']:,} questions asked, ", end="")
        console.print(f"{found.judge['judge_cached']:,} known")
    if found.after.why:
        console.print(f"the first without a score: {found.after.why}")


def _shown(figure: Measured) -> str:
    """`0.94 (0.80 to 0.98)`."""
    return figure.formatted(".2f", unmeasured="none")
