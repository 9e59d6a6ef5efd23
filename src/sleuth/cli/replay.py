"""`sleuth replay` and `sleuth rescore`: recorded steps and rollouts, computed again under a change."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from sleuth.host.threads import PROCESS
from sleuth.own.permission import BY_RUN, CODE
from sleuth.terminal.options import AllowCode, AsJson, NoCode, Overrides
from sleuth.terminal.tables import Column, print_columns, print_notes, show, with_interval
from sleuth.training.heavy import import_heavy
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.training.replay import Rescored


def replay(
    run: Annotated[Path, Argument(metavar="RUN", help="A run folder.")],
    step: Annotated[int, Argument(min=1, help="A step in its metrics.")],
    overrides: Overrides = None,
    layout: Annotated[
        Literal["tree", "padded"], Option(help="Compute shared prefixes once, or each row by itself.")
    ] = "tree",
    allow_code: AllowCode = False,
    as_json: AsJson = False,
) -> None:
    """Compute a recorded step again under another reward or loss.

    Its rollouts are read, and the weights before it are rebuilt from the nearest checkpoint and the rollouts since.
    --layout changes how rows are laid out. Nothing is written. A reward or a loss of your own is imported only with
    --allow-code.
    """
    from sleuth.recipe import load_recipe
    from sleuth.runs.run_folder import RunFolder

    folder = RunFolder.look(run)
    PROCESS.begin(folder.manifest.read().get("threads"))
    changed = load_recipe(run / "recipe.toml", overrides or ())

    import_heavy()
    from sleuth.cli.pipeline import trained_stages
    from sleuth.recipe.grpo import GrpoRecipe
    from sleuth.runs.progress import progress_bar
    from sleuth.training.replay import replay as replay_step

    for stage in trained_stages(folder.recipe, folder):
        recipe = changed.stages_of(GrpoRecipe).get(stage.index)
        if recipe is not None and stage.first_step < step <= stage.first_step + recipe.steps:
            with progress_bar("replay") as progress:
                found = replay_step(stage, step, recipe, padded=layout == "padded", progress=progress)
            PROCESS.announce()
            break
    else:
        raise SleuthError(f"{run}: step {step} belongs to no GRPO stage, so it has no rollouts")
    between = found.step - found.restored_at - 1
    show(
        as_json,
        asdict(found),
        f"step {found.step}, with the weights of step {found.restored_at} and {between} updates made again",
        f"loss as recorded     {_shown(found.recorded_loss)}",
        f"loss, computed again {_shown(found.loss)}",
        f"loss after changes   {_shown(found.changed_loss)}",
        f"cosine of gradients  {_shown(found.cosine)}  (as it was, and after the changes)",
        f"scores changed       {found.scores_changed} of {found.episodes}",
    )


def _shown(value: float | None) -> str:
    return "no trained tokens" if value is None else f"{value:.9g}"


def rescore(
    run: Annotated[Path, Argument(metavar="RUN", help="A run folder.", show_default=False)],
    reward: Annotated[
        Path, Option(metavar="NEW.toml", help="A file of [[reward]] tables, as in a recipe.", show_default=False)
    ],
    no_code: NoCode = False,
    as_json: AsJson = False,
) -> None:
    """Score a run's rollouts again under another reward.

    Prints how far the two rewards agree. Nothing is generated. A judge's verdicts are taken from the run and only
    missing ones are asked for; where only weights differ, no call is made.
    """
    from sleuth.recipe.load import load_rewards
    from sleuth.recipe.rewards import unfit_rewards
    from sleuth.runs.run_folder import RunFolder
    from sleuth.terminal.recipe_inputs import missing_inputs

    rewards = load_rewards(reward, missing_inputs).reward
    with CODE.refusing(BY_RUN):  # a reward may bring code, a run not
        folder = RunFolder.look(run)

    import_heavy()
    from sleuth.cli.pipeline import trained_stages
    from sleuth.recipe.grpo import GrpoRecipe
    from sleuth.runs.progress import progress_bar
    from sleuth.training.replay import rescore as rescore_stage

    played = folder.recipe.stages_of(GrpoRecipe)
    stages = [one for one in trained_stages(folder.recipe, folder) if one.index in played]
    if not stages:
        raise SleuthError(f"{run}: has no GRPO stage, so there are no rollouts to score")
    unfit = [(one.stage.name, line) for one in stages for line in unfit_rewards(rewards, played[one.index].env)]
    if unfit:
        raise SleuthError(*(f"{reward}: {line}, as in stage {name} of {run}" for name, line in unfit))
    with progress_bar("rescore") as progress:
        found = [
            rescore_stage(stage, rewards, progress=progress, warn=lambda line: print_notes([line])) for stage in stages
        ]
    if as_json:
        typer.echo(json.dumps({"stages": [asdict(one) for one in found]}))
        return
    for one in found:
        _print_rescored(one, reward)


def _print_rescored(found: Rescored, reward: Path) -> None:
    from sleuth.runs.progress import Console

    console = Console()
    console.print(f"{found.stage}: {found.episodes:,} episodes in {found.groups:,} groups of {found.steps:,} steps")
    columns = [
        Column(
            heading=heading,
            cells=[
                "none" if one.mean is None else f"{one.mean:.3f}",
                f"{one.missing:,}",
                with_interval(one.signal, "none"),
            ],
        )
        for heading, one in (("as it was", found.before), (f"under {reward}", found.after))
    ]
    print_columns(["mean score", "without a score", "groups with signal"], columns)
    console.print(
        f"Kendall's tau-b of siblings  {with_interval(found.within, 'none')}, of {found.within.n:,} questions"
    )
    console.print(f"of all episodes              {'none' if found.overall is None else f'{found.overall:.2f}'}")
    console.print(f"the same sibling is best in  {with_interval(found.same_best, 'none')} of groups")
    if found.judge:
        console.print(f"judge                        {found.judge['judge_asked']:,} questions asked, ", end="")
        console.print(f"{found.judge['judge_cached']:,} known")
    if found.after.why:
        console.print(f"the first without a score: {found.after.why}")
