"""`sleuth plan`: prints what a run will need, before it begins: bytes by phase, whether they fit, and the time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from sleuth.host.escapes import folded
from sleuth.host.hardware import CARDS, Cards, read_cards
from sleuth.host.memory import total_host_memory
from sleuth.terminal.options import AsJson, CheckNoCode, Overrides, RecipeFile
from sleuth.terminal.tables import Column, print_columns
from sleuth.training.heavy import import_heavy
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.plan.fit import CardPlan, StageTime
    from sleuth.plan.phases import Phase
    from sleuth.recipe import Recipe


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
            autocompletion=lambda: ["cpu", *CARDS],
        ),
    ] = "cpu",
    threads: Annotated[
        int | None, Option(min=1, metavar="N", help="Threads that search. [default: those of this machine]")
    ] = None,
    price: Annotated[
        float | None, Option(min=0, metavar="MONEY", help="What a card costs an hour: prints what the run costs.")
    ] = None,
    simulate: Annotated[
        bool,
        Option("--simulate", help="Play steps out in events: what waits for what, and how to split 1, 8 and 64 cards."),
    ] = False,
    measured: Annotated[
        Path | None,
        Option(metavar="RUN", help="With --simulate: draw the times of this run, in place of those of a --card."),
    ] = None,
    no_code: CheckNoCode = False,
    as_json: AsJson = False,
) -> None:
    """Predict the steps, memory, calls, time and price of a run.

    Computes the bytes of each phase from the shape of the model, and whether they fit a card; runs nothing and needs no
    data. Stages that arms of a sweep share count once. The report of a run shows its plan beside what it measured.
    """
    from sleuth.recipe import load_recipe
    from sleuth.recipe.sweep import is_sweep, load_sweep

    if simulate or measured is not None:
        if not simulate or (measured is None) == (card == "cpu"):
            raise SleuthError("--simulate needs times: name a --card, or a run with --measured, and not both")
        print_simulated(load_recipe(recipe, overrides or ()), card, world or 1, threads, measured, as_json)
        return
    if is_sweep(recipe):
        sweep, runs = load_sweep(recipe, overrides or ())
        plans = {name: _plan(run, card, world, threads) for name, run in runs.items()}
        _print_sweep(runs, len(sweep.seeds), plans, price, as_json)
        return
    predicted = _plan(load_recipe(recipe, overrides or ()), card, world, threads)
    if as_json:
        paid = price and predicted.card_hours and price * predicted.card_hours
        typer.echo(json.dumps(predicted.as_json() | {"price": paid}))
    else:
        print_card_plan(predicted, price)


def _plan(recipe: Recipe, card: str, world: int | None, threads: int | None) -> CardPlan:
    """The plan of a recipe for what the options name."""
    from sleuth.plan.fit import plan_for_cards, plan_for_cpu

    if card == "cpu":
        if world not in (None, 1):
            raise SleuthError(f"--card cpu is for one process: leave --ranks {world} out, or name a card")
        return plan_for_cpu(recipe, total_host_memory(), threads)
    cards = _cards(card)
    count = world or cards.count
    if count > 1:
        import_heavy()
        from sleuth.cli.pipeline import require_ranks
        from sleuth.plan.phases import ranks_and_servers
        from sleuth.ranks import Ranks

        require_ranks(recipe, Ranks(world=ranks_and_servers(recipe, count)[0]))
    return plan_for_cards(recipe, replace(cards, count=count), threads)


def _cards(option: str) -> Cards:
    try:
        return read_cards(option)
    except ValueError as error:
        raise SleuthError(f"--card {option}: {error}") from None


def _print_sweep(
    runs: Mapping[str, Recipe], seeds: int, plans: Mapping[str, CardPlan], price: float | None, as_json: bool
) -> None:
    """What each arm adds to those before, over all seeds, and the sum; a file that a stage makes serves all of them."""
    from sleuth.recipe.sweep import own_stages

    rows = dict[str, dict[str, Any]]()
    for name, own in own_stages(runs).items():
        plan, stages = plans[name], runs[name].stage
        parts = [(plan.stages[at], 1 if stages[at].makes() else seeds) for at in own]
        rows[name] = {key: sum((getattr(part, key) or 0) * n for part, n in parts) for key in SUMS[:-1]}
        rows[name]["seconds"] += sum(part.start * n for part, n in parts)
        others = sum(part.judge_cards * (part.seconds or 0) * n for part, n in parts)
        rows[name] |= {"card_hours": (plan.own_cards * rows[name]["seconds"] + others) / 3600, "fits": plan.fits}
        rows[name]["unknown"] = [part.name for part, _ in parts if part.seconds is None]
    whole: dict[str, Any] = {key: sum(row[key] for row in rows.values()) for key in SUMS}
    columns = []
    for heading, key in zip(("steps", "searches", "model calls", "hours", "card hours"), SUMS, strict=True):
        if not whole[key]:
            continue
        of_key = [row[key] for row in (*rows.values(), whole)]
        *cells, footer = [f"{n / 3600:,.1f}" if key == "seconds" else f"{n:,.{key == 'card_hours':d}f}" for n in of_key]
        columns.append(Column(heading=heading, cells=cells, footer=footer))
    whole |= {key: whole[key] or None for key in SUMS[-2:]}  # without a card there is no time
    if as_json:
        fits, paid = all(row["fits"] for row in rows.values()), price and (whole["card_hours"] or 0) * price
        typer.echo(json.dumps({"fits": fits, "seeds": seeds, **whole, "price": paid or None, "arms": rows}))
        return
    print_columns(list(rows), columns, heading="arm", footer="in all")
    typer.echo(f"{seeds} seeds; what an earlier arm has made counts there alone")
    if unknown := sorted({name for row in rows.values() for name in row["unknown"]}):
        typer.echo(f"without the time of {', '.join(unknown)}, which is not known")
    if price is not None:
        typer.echo(_paid(whole["card_hours"], price))
    for name, plan in plans.items():
        if not plan.fits:
            typer.echo(f"{name}: {plan.line()}")


SUMS = ("steps", "searches", "calls", "seconds", "card_hours")
"""What arms add up to."""
COLUMNS = {
    "weights": ("weights",),
    "frozen": ("reference", "teacher"),
    "state": ("masters", "optimiser"),
    "grads": ("gradients",),
    "activ.": ("activations", "kept activations", "vocabulary"),
    "cache": ("cache",),
    "other": ("packed weights", "server", "judge or teacher", "work", "checkpoint", "libraries"),
}
"""Heading -> the parts that are added up under it."""


def print_card_plan(plan: CardPlan, price: float | None = None) -> None:
    """The table in 80 columns, and lines."""
    from sleuth.runs.progress import Console

    Console().print(_table(plan))
    typer.echo("\n".join(["", *map(folded, _lines(plan, price))]))


def _sections(plan: CardPlan) -> dict[str, tuple[list[str], list[Phase]]]:
    """Stage -> the stages with the same figures, its own name first, and its phases."""
    sections: dict[str, tuple[list[str], list[Phase]]] = {}
    firsts: dict[str, str] = {}
    for name in dict.fromkeys(phase.stage for phase in plan.phases):
        phases = [phase for phase in plan.phases if phase.stage == name]
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
    table.add_column(f"GB of {plan.own_cards} x {plan.card}", overflow="fold")
    for heading in (*COLUMNS, "total"):
        table.add_column(heading, justify="right", min_width=5, no_wrap=True)
    for names, phases in _sections(plan).values():
        table.add_row(", ".join(names), style="bold")
        for phase in phases:
            sums = [sum(phase.bytes.get(part, 0) for part in parts) for parts in COLUMNS.values()]
            cells = [f"{count / 1e9:.1f}" if count else "" for count in sums]
            table.add_row(f"  {phase.name}", *cells, f"{sum(sums) / 1e9:.1f}")
    return table


def _lines(plan: CardPlan, price: float | None) -> Iterator[str]:
    from sleuth.host.disk import shown
    from sleuth.plan.speed import NETWORK

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
    yield from (note for stage in plan.stages for note in stage.notes)
    if plan.downloads:
        known = {name: size for name, size in plan.downloads.items() if size is not None}
        parts = [*(f"{name} {shown(round(size))}" for name, size in known.items())]
        parts += [f"{name}, whose size is not known" for name in plan.downloads.keys() - known.keys()]
        fetching = f"{_duration(sum(known.values()) / NETWORK)} at {shown(round(NETWORK))} a second"
        yield f"to download, if it is not in the hub's cache, about {fetching}: {'; '.join(parts)}"
    if price is not None:
        yield _paid(plan.card_hours, price)
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
    known = plan.start + sum(stage.seconds or 0.0 for stage in plan.stages)
    unknown = [stage.name for stage in plan.stages if stage.seconds is None]
    without = f" without {', '.join(unknown)}, whose questions are not known" if unknown else ""
    yield f"time: about {_duration(known)}{without}; {_assumed(plan.card)}"


def _assumed(card: str) -> str:
    from sleuth.plan.speed import ASSUMED, MEASURED

    shares = MEASURED.get(card, ASSUMED)
    shown = f"{shares.update:.0%} of its arithmetic in updates and {shares.decoding:.0%} of its bandwidth in decoding"
    return f"an estimate from the data sheet, at {shown}, as if nothing were done while something else is"


def _paid(card_hours: float | None, price: float) -> str:
    if card_hours is None:
        return "price: not known, because the time is not; name a --card, and data whose size is known"
    return f"price: {price * card_hours:,.2f}, for {card_hours:,.1f} card hours at {price:,.2f}"


def _duration(seconds: float) -> str:
    """`9.2 hours`, `12 minutes`."""
    if seconds >= 3600:
        return f"{timedelta(seconds=seconds) / timedelta(hours=1):.1f} hours"
    return f"{max(1, round(seconds / 60))} minutes"


SPLIT_CARDS = (1, 8, 64)
"""How many of them are split between servers and ranks."""


def print_simulated(
    recipe: Recipe, card: str, world: int, threads: int | None, measured: Path | None, as_json: bool
) -> None:
    """For each `grpo` stage the best split of cards, and how busy each part is then; of a `measured` run, which had
    `world` ranks, first its own split, beside the seconds that its steps took."""
    import_heavy()
    from sleuth.plan.parts import measured_parts, planned_parts
    from sleuth.plan.simulate import Split, best_split, simulate
    from sleuth.recipe import GrpoRecipe

    if not (stages := recipe.stages_of(GrpoRecipe)):
        raise SleuthError("--simulate plays the steps of `grpo` stages, and the recipe has none")
    records = []
    for index, stage in stages.items():
        servers, least, rows, seconds = 1, 1, {}, None
        if measured is not None:
            parts, servers, seconds = measured_parts(measured, stage.name, world)
        else:
            parts, least = planned_parts(recipe, index, _cards(card).card, threads)
        slots = recipe.requests_of(stage.engine, servers) if stage.engine is not None else stage.slots
        lag = stage.engine.max_policy_lag if stage.engine is not None else 0
        step = {"prompts": stage.prompts_per_step, "samples": stage.samples_per_prompt, "lag": lag}
        split = Split(servers=servers, ranks=world, slots=slots, **step)
        if measured is not None:
            rows["this run"] = simulate(parts, split)
        for cards in SPLIT_CARDS:
            if cards > least or cards == 1 == least:
                rows[str(cards)] = best_split(parts, cards, split, least_ranks=least)
        found = {name: asdict(row) | {"limit": row.limit} for name, row in rows.items()}
        records.append({"stage": stage.name, "live": split.live, "measured_step": seconds, "splits": found})
        if as_json:
            continue
        times = f"; steps of {measured} took {seconds:.3g} s" if seconds is not None else ""
        typer.echo(f"{stage.name}: {split.live:,} episodes under way; shares of time at work{times}")
        busy = {part: [row.busy[part] for row in rows.values()] for part in rows[str(SPLIT_CARDS[-1])].busy}
        shares = {part: [f"{one:.0%}" if one else "" for one in of] for part, of in busy.items() if any(of)}
        columns = [
            Column(heading="servers", cells=[str(row.split.servers) for row in rows.values()]),
            Column(heading="ranks", cells=[str(row.split.ranks) for row in rows.values()]),
            Column(heading="s a step", cells=[f"{row.step:.3g}" for row in rows.values()]),
            *(Column(heading=part, cells=cells) for part, cells in shares.items()),
            Column(heading="limit", cells=[row.limit for row in rows.values()], is_text=True),
        ]
        print_columns(list(rows), columns, heading="cards")
    if as_json:
        typer.echo(json.dumps({"stages": records}))
    elif measured is None:
        typer.echo(_assumed(card))
