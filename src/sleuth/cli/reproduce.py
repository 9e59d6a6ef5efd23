"""`sleuth reproduce`: a published system from its published beginning, or its twin: needs, runs, table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from sleuth.cli.app import PAUSED
from sleuth.terminal.options import AsJson, NoCode, Overrides, Quiet
from sleuth.terminal.tables import Column, print_columns, show
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.cli.needs import Need
    from sleuth.recipe import Recipe
    from sleuth.recipe.published import PublishedRun, PublishedSystem

PAGE, TABLE, COMPARISON = "reproduction.html", "reproduction.json", "compared.html"
TWIN = "These runs are the tiny twin, on a generated world: the way is the published one, the numbers are not its own."


def reproduce(
    name: Annotated[
        str | None, Argument(metavar="NAME", help="A published system; without one, lists them.", show_default=False)
    ] = None,
    tiny: Annotated[bool, Option("--tiny", help="Its twin: two cores, no network, minutes.")] = False,
    run: Annotated[
        Path | None, Option(metavar="DIR", help="Holds the runs and the page. [default: runs/NAME or runs/NAME-tiny]")
    ] = None,
    only: Annotated[
        list[str] | None, Option("--arm", metavar="NAME", help="Train this run of it; more than once for several.")
    ] = None,
    check: Annotated[bool, Option("--check", help="Print what it needs, and stop.")] = False,
    overrides: Overrides = None,
    no_code: NoCode = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Reproduce a published system, in a table beside ours.

    First prints what it needs: weights, rows, index, judge, cards and disk, each here, to be fetched, or missing with
    the remedy. Then fetches, starts servers, trains and evaluates. The same command goes on after a stop.
    """
    from sleuth.recipe.published import read_system, system_names

    if name is None:
        systems = {known: read_system(known) for known in system_names()}
        lines = [f"{known}: {system.title}" for known, system in systems.items()]
        return show(as_json, {"systems": {known: system.title for known, system in systems.items()}}, *lines)
    system = read_system(name)
    chosen = _chosen(system, only or [], tiny)
    root = run or Path("runs") / f"{Path(name).stem}{'-tiny' if tiny else ''}"

    from sleuth.runs.progress import quiet as silence

    silent = quiet or as_json
    with silence(silent):
        if tiny:
            _write_world()
        settings = _settings(chosen, tiny, overrides or [])
        recipes = {one.name: dict(_recipes_of(one, settings[one.name], tiny)) for one in chosen}
        _require_rows(name, system, recipes, tiny)
        needs = _needs(recipes, root, tiny)
        if check or not as_json:
            record = {"needs": [need.as_json() for need in needs]}
            show(as_json, record, *map(_folded, needs))
        if missing := [need for need in needs if need.state == "missing"]:
            told = [need.line() for need in missing] if as_json and not check else []
            raise SleuthError(*told, f"{name}: {len(missing)} of the {len(needs)} things that it needs are missing")
        if check:
            return
        for need in needs:
            need.fetch()
        for one in chosen:
            flags = [*(["--no-code"] * no_code), *(["--quiet"] * silent)]
            _train(one, settings[one.name], recipes[one.name], root / one.name, tiny, flags)
    _write_table(system, chosen, recipes, root, tiny, as_json)


def _folded(need: Need) -> str:
    """The line of a need, as wide as the terminal."""
    from sleuth.runs.progress import Console

    width = Console().width
    return fill(need.line(), width, subsequent_indent=" " * 10, break_long_words=False, break_on_hyphens=False)


def _chosen(system: PublishedSystem, only: list[str], tiny: bool) -> list[PublishedRun]:
    names = [one.name for one in system.run if one.twin or not tiny]
    if unknown := [name for name in only if name not in names]:
        raise SleuthError(*(f"--arm {name}: no such run; there are {', '.join(names)}" for name in unknown))
    return [one for one in system.run if one.name in (only or names) and (only or not one.optional)]


def _settings(chosen: list[PublishedRun], tiny: bool, overrides: list[str]) -> dict[str, list[str]]:
    """What changes in each run, by its name: a key of a stage that only some of them have changes these."""
    settings = {one.name: [*one.twin_set] if tiny else [] for one in chosen}
    found = {one.name: _recipes_of(one, settings[one.name], tiny) for one in chosen if overrides}
    stages = {name: {f"{stage.name}." for _, recipe in runs for stage in recipe.stage} for name, runs in found.items()}
    for name, own in stages.items():
        others = tuple(set[str]().union(*stages.values()) - own)
        settings[name] += [text for text in overrides if not text.startswith(others) or text.startswith(tuple(own))]
    return settings


def _recipes_of(run: PublishedRun, settings: list[str], tiny: bool) -> Iterator[tuple[str, Recipe]]:
    """The recipe by its run's name or, of a sweep, each arm's, which are not looked up yet."""
    from sleuth.recipe import load_recipe
    from sleuth.recipe.shipped import find_recipe
    from sleuth.recipe.sweep import is_sweep, load_sweep

    file = Path(run.twin if tiny else run.recipe)
    if is_sweep(find_recipe(file)):
        yield from load_sweep(file, settings)[1].items()
    else:
        yield "", load_recipe(file, settings)


def _require_rows(name: str, system: PublishedSystem, recipes: dict[str, dict[str, Recipe]], tiny: bool) -> None:
    """Raises SleuthError with a line for each row of the table that no stage of its run measures."""
    from sleuth.recipe.published import STEPS
    from sleuth.runs.metrics import step_figures

    problems = []
    for at, row in enumerate(system.row):
        (run, *arm, place), key = row.place(tiny=tiny)
        stage, _, test_set = place.partition("@")
        if run not in recipes:
            continue
        told = f"{name}: row.{at} ({row.about}):"
        if (recipe := recipes[run].get("".join(arm))) is None:
            problems.append(f"{told} {run} has no arm {''.join(arm)!r}")
            continue
        measuring = {one: index for index, each in enumerate(recipe.stage) for one in getattr(each, "evaluations", ())}
        if stage not in (STEPS, *measuring):
            problems.append(f"{told} no stage measures {stage}; there are {', '.join(measuring)}")
            continue
        known = [one.name for one in step_figures()] if stage == STEPS else _figures_of(recipe, measuring[stage])
        if not any(fnmatchcase(key, pattern) for pattern in known):
            near = "".join(f"; did you mean {close}?" for close in get_close_matches(key, known, n=1))
            problems.append(f"{told} {stage} has no figure {key}{near}")
        if test_set and test_set not in (sets := _sets_of(recipe.stage[measuring[stage]])):
            problems.append(f"{told} {stage} has no set {test_set}; it has {', '.join(sets)}")
    if problems:
        raise SleuthError(*problems)


def _figures_of(recipe: Recipe, index: int) -> list[str]:
    """The figures that a stage can write, by their patterns: of one that asks questions those of its dialect."""
    from sleuth.evaluation.figures import figures
    from sleuth.recipe import EvaluateRecipe

    if not isinstance(recipe.stage[index], EvaluateRecipe):
        return [one.name for one in figures()]
    dialect = recipe.env_and_context(index)[0].plain_dialect()
    return [one.name for one in figures() if one.used in ("everywhere", "files") and one.dialects(dialect)]


def _sets_of(stage: Any) -> list[str]:
    """The test sets that a stage asks."""
    from sleuth.answers.suites import SUITES, sets_in

    if hasattr(stage, "sets"):
        return [one.layout for one in stage.sets]
    suite = getattr(getattr(stage, "data", None), "suite", None)
    return [] if suite is None else list(SUITES[str(suite)].questions if str(suite) in SUITES else sets_in(suite))


def _needs(recipes: dict[str, dict[str, Recipe]], root: Path, tiny: bool) -> list[Need]:
    """What all runs need, each thing once."""
    from sleuth.cli.needs import cards_needed, disk_needed, needs_of

    every = [recipe for of_run in recipes.values() for recipe in of_run.values()]
    found = {need.what: need for recipe in every for need in needs_of(recipe)}
    cards = {need.what: need for recipe in every for need in cards_needed(recipe)} if not tiny else {}
    return [*found.values(), *cards.values(), disk_needed(every, list(found.values()), root)]


def _train(
    run: PublishedRun, settings: list[str], recipes: dict[str, Recipe], place: Path, tiny: bool, flags: list[str]
) -> None:
    """Trains it in its folder, on as many ranks as its cards leave for training, which have the `flags` of this
    command. Raises typer.Exit where it fails."""
    from sleuth.cli.needs import cards_of
    from sleuth.plan.phases import ranks_and_servers

    file, verb = Path(run.twin if tiny else run.recipe), "train" if "" in recipes else "sweep"
    first = next(iter(recipes.values()))
    cards = None if tiny else cards_of(first)
    ranks = ranks_and_servers(first, cards.count)[0] if cards else 1
    if ranks > 1:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
        options = ["--run", str(place), *flags, *(part for text in settings for part in ("--set", text))]
        status = subprocess.run([*launcher, "--", "sleuth", verb, str(file), *options], check=False).returncode
        if status and (verb, status) != ("sweep", PAUSED):
            raise typer.Exit(status)
    elif verb == "train":
        from sleuth.cli.train import train

        train(file, settings, place)
    else:
        from sleuth.cli.sweep import sweep

        try:
            sweep(file, settings, place)
        except typer.Exit as ended:
            if ended.exit_code != PAUSED:  # arms that missed their gate are measured as far as they came
                raise


def _write_table(
    system: PublishedSystem,
    chosen: list[PublishedRun],
    recipes: dict[str, dict[str, Recipe]],
    root: Path,
    tiny: bool,
    as_json: bool,
) -> None:
    from sleuth.host.atomic import write_text
    from sleuth.report import write_report
    from sleuth.report.arm_table import arm_folder
    from sleuth.report.arms import read_arms
    from sleuth.report.comparison import compare
    from sleuth.report.page import write_comparison
    from sleuth.report.published import published_table, write_published

    places, pages = dict[str, Path](), dict[str, str]()
    for one in chosen:
        for arm, recipe in recipes[one.name].items():
            folder = arm_folder(root / one.name, recipe.seed, arm) if arm else root / one.name
            places[one.name] = folder.parent if arm else folder
            pages[f"{one.name} {arm}".strip()] = write_report(folder).relative_to(root).as_posix()
    alone = [f"{one.name}={root / one.name}" for one in chosen if "" in recipes[one.name]]
    if len(alone) > 1:
        write_comparison(compare(read_arms(alone)), root / COMPARISON)
        pages["beside each other"] = COMPARISON
    rows = published_table(system, places, tiny=tiny)
    notes = [f"Published: {system.source}", *([TWIN] if tiny else []), *([system.note] if system.note else [])]
    write_published(system.title, notes, rows, pages, root / PAGE)
    record: dict[str, Any] = {"title": system.title, "tiny": tiny, "rows": [row.as_json() for row in rows]}
    write_text(root / TABLE, json.dumps(record, indent=1) + "\n")
    if as_json:
        return show(as_json, record | {"page": str(root / PAGE)})
    cells = [row.cells() for row in rows]
    headings = ("published", "here", "n")
    columns = [Column(heading=heading, cells=[row[at] for row in cells]) for at, heading in enumerate(headings)]
    print_columns([row.about for row in rows], columns, heading=system.title)
    typer.echo("\n".join([*notes, f"The page: {root / PAGE}"]))


def _write_world() -> None:
    """The world of the twins, its index, and its rows in the layouts of the published ones."""
    from sleuth.cli.published_rows import write_published_rows
    from sleuth.recipe.shipped import WORLD
    from sleuth.retrieval.bm25 import build_index
    from sleuth.runs.progress import progress_bar, row_counter
    from sleuth.world.write_world import CORPUS, write_world

    with progress_bar("world") as progress:
        write_world(WORLD, seed=0, people=2000, progress=progress)
    build_index(WORLD / CORPUS, WORLD / "index", row_counter("index"))
    write_published_rows(WORLD)
