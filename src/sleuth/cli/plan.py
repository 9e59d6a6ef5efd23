"""`sleuth plan`: prints what a run will need, before it begins: bytes by phase, whether they fit, and the time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from sleuth.host.memory import total_host_memory
from sleuth.terminal.options import AsJson, CheckNoCode, Overrides, RecipeFile
from sleuth.training.heavy import import_heavy
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.plan.fit import CardPlan, StageTime
    from sleuth.plan.phases import Phase


def plan(
    recipe: RecipeFile,
    overrides: Overrides = None,
    world: Annotated[
        int | None, Option("--ranks", min=1, metavar="N", help="How many cards there are. [default: 1]")
    ] = None,
    card: Annotated[
        str,
        Option(
            metavar="NAME",
            help='The card, such as h100-80, "8 x a100-40" or 24GB; cpu: this machine\'s memory, without a time.',
        ),
    ] = "cpu",
    no_code: CheckNoCode = False,
    as_json: AsJson = False,
) -> None:
    """Predict a recipe's steps, memory, judge calls and time.

    Computes the bytes of each phase from the shape of the model, and whether they fit a card; runs nothing and needs no
    data. The report of a run shows its plan beside what it measured.
    """
    from sleuth.host.hardware import Cards, read_cards
    from sleuth.plan.fit import plan_for_cards, plan_for_cpu
    from sleuth.recipe import load_recipe

    resolved = load_recipe(recipe, overrides or ())
    if card == "cpu":
        if world not in (None, 1):
            raise SleuthError(f"--card cpu is for one process: leave --ranks {world} out, or name a card")
        predicted = plan_for_cpu(resolved, total_host_memory())
    else:
        try:
            cards = read_cards(card)
        except ValueError as error:
            raise SleuthError(f"--card {card}: {error}") from None
        count = world or cards.count
        if count > 1:
            import_heavy()
            from sleuth.cli.pipeline import require_ranks
            from sleuth.plan.phases import ranks_and_servers
            from sleuth.ranks import Ranks

            require_ranks(resolved, Ranks(world=ranks_and_servers(resolved, count)[0]))
        predicted = plan_for_cards(resolved, Cards(count=count, card=cards.card))
    if as_json:
        typer.echo(json.dumps(predicted.as_json()))
    else:
        print_card_plan(predicted)


COLUMNS = {
    "weights": ("weights",),
    "frozen": ("reference", "teacher"),
    "state": ("masters", "optimiser"),
    "grads": ("gradients",),
    "activ.": ("activations", "kept activations", "vocabulary"),
    "cache": ("cache",),
    "other": ("packed weights", "server", "checkpoint", "libraries"),
}
"""Heading -> the parts that are added up under it."""


def print_card_plan(plan: CardPlan) -> None:
    """The table in 80 columns, and lines."""
    from sleuth.runs.progress import Console

    Console().print(_table(plan))
    typer.echo("\n".join(["", *_lines(plan)]))


def _sections(plan: CardPlan) -> dict[str, tuple[list[str], list[Phase]]]:
    """Stage -> the stages with the same figures, its own name first, and its phases."""
    sections: dict[str, tuple[list[str], list[Phase]]] = {}
    firsts: dict[str, str] = {}
    for name, group in groupby(plan.phases, key=lambda phase: phase.stage):
        phases = list(group)
        figures = str([(phase.name, sorted(phase.bytes.items())) for phase in phases if phase.name != "load"])
        first = firsts.setdefault(figures, name)
        if first == name:
            sections[name] = [], phases
        sections[first][0].append(name)
    return sections


def _table(plan: CardPlan) -> object:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(f"GB of {plan.ranks + plan.servers} x {plan.card}")
    for heading in (*COLUMNS, "total"):
        table.add_column(heading, justify="right", min_width=5, no_wrap=True)
    for names, phases in _sections(plan).values():
        table.add_row(", ".join(names), style="bold")
        for phase in phases:
            sums = [sum(phase.bytes.get(part, 0) for part in parts) for parts in COLUMNS.values()]
            cells = [f"{count / 1e9:.1f}" if count else "" for count in sums]
            table.add_row(f"  {phase.name}", *cells, f"{sum(sums) / 1e9:.1f}")
    return table


def _lines(plan: CardPlan) -> Iterator[str]:
    from sleuth.host.disk import shown

    seen: set[str] = set()
    for phase in plan.phases:
        if phase.need is None:
            continue
        holds = f"{phase.at_once} of {phase.asked} typical sequences at once"
        least = f"one at its limit takes {shown(phase.need.least)}"
        all_of_them = f"all of them {shown(phase.need.typical)}, at their limit {shown(phase.need.at_limit)}"
        line = f"{phase.name}: a cache of {shown(phase.bytes.get('cache', 0))} holds {holds}; {all_of_them}; {least}"
        if line not in seen:
            yield f"{phase.stage}: {line}"
        seen.add(line)
    if plan.host_memory_bytes:
        yield f"host memory of a rank beside its libraries: {shown(plan.host_memory_bytes)}"
    yield f"checkpoints: {shown(plan.peak_disk_bytes)} at most"
    yield "; ".join(f"{stage.name}: {_count(stage)}" for stage in plan.stages)
    yield from _times(plan)
    yield from (step.line() for step in plan.step_calls)
    yield from plan.notes
    yield plan.line()


def _count(stage: StageTime) -> str:
    """`100 steps, 3,200 episodes`."""
    played = "as many episodes as questions" if stage.episodes is None else f"{stage.episodes:,} episodes"
    return ", ".join([*([f"{stage.steps:,} steps"] if stage.steps else []), *([played] if stage.episodes != 0 else [])])


def _times(plan: CardPlan) -> Iterator[str]:
    for stage in plan.stages:
        if stage.step_seconds:
            parts = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in stage.step_seconds.items())
            whole = sum(stage.step_seconds.values())
            yield f"{stage.name}: {stage.steps:,} steps of about {whole:.3g} s ({parts})"
    if plan.card == "cpu":
        return
    known = sum(stage.seconds or 0.0 for stage in plan.stages)
    unknown = [stage.name for stage in plan.stages if stage.seconds is None]
    without = f" without {', '.join(unknown)}, whose questions are not known" if unknown else ""
    yield f"time: about {_duration(known)}{without}; {_assumed(plan.card)}"


def _assumed(card: str) -> str:
    from sleuth.plan.speed import ASSUMED, MEASURED

    shares = MEASURED.get(card, ASSUMED)
    shown = f"{shares.update:.0%} of its arithmetic in updates and {shares.decoding:.0%} of its bandwidth in decoding"
    return f"an estimate from the data sheet, at {shown}, without judges and searches"


def _duration(seconds: float) -> str:
    """`9.2 hours`, `12 minutes`."""
    if seconds >= 3600:
        return f"{timedelta(seconds=seconds) / timedelta(hours=1):.1f} hours"
    return f"{max(1, round(seconds / 60))} minutes"
