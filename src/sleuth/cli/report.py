"""`sleuth report`, `sleuth watch` and `sleuth compare`: a run as one HTML page, runs while they train, and the paired
differences between runs, checkpoints or evaluation files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from sleuth.cli.http_server import ApiKey, Host, Insecure, access_of, address_of, listen, server_of
from sleuth.cli.http_server import run as serve_until_stopped
from sleuth.host.escapes import folded
from sleuth.terminal.options import AllowCode, AsJson
from sleuth.terminal.tables import Column, print_columns, show
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.answers.failures import Mode
    from sleuth.evaluation.significance import Difference
    from sleuth.report.comparison import Compared, Comparison, Pair

WIDE = 100
"""Columns of a terminal that two arms and their difference need."""
LEGEND = (
    "[low, high] is a 95 % interval. p is how likely so large a difference would be if both sides were alike: "
    "McNemar's exact test for outcomes of 0 and 1, sign flips for others and for means over sets, Student's t over "
    "several runs; not corrected for the number of rows."
)


def report(
    run: Annotated[Path, Argument(metavar="RUN", help="A run folder, finished or not, or a home of `learn`.")],
    as_json: AsJson = False,
) -> None:
    """Write a run's report: one HTML page that opens offline.

    RUN/report.html shows the figures, the curves and some of the episodes; RUN/rollouts holds all. It needs no network
    and no other file. With --json it prints what was planned of each stage, and what was measured.
    """
    from sleuth.report import write_report
    from sleuth.report.curves import stages_of
    from sleuth.report.run_files import read_run, run_in
    from sleuth.report.summary import stage_times

    run = run_in(run)
    page = write_report(run, warn=partial(typer.echo, err=True))
    files = read_run(run)
    times = stage_times(files.manifest, stages_of(files.metrics))
    show(as_json, {"page": str(page), "stages": {time.stage: time.as_json() for time in times}}, str(page))


def watch(
    runs: Annotated[
        list[Path],
        Argument(
            metavar="RUN...",
            help="Run folders or homes of `learn`, at most 8; an empty one is a run to come.",
            show_default=False,
        ),
    ],
    port: Annotated[int, Option(min=0, max=65535, help="0 takes a free one.")] = 8080,
    host: Host = "127.0.0.1",
    api_key: ApiKey = None,
    insecure: Insecure = False,
) -> None:
    """Serve the reports of runs under way, always up to date.

    Above each report stand the state and the alarms of its run, and the states of the others. Reads the folders and
    writes nothing.
    """
    from sleuth.report.live import live_reports
    from sleuth.serve.watch import watch_app

    reports = live_reports(runs)
    listening = listen(host, port)
    access = access_of(host, api_key=api_key, insecure=insecure)
    server = server_of(watch_app(reports, access))
    typer.echo(f"{', '.join(map(str, runs))}: at {address_of(host, listening)}/ until Ctrl-C")
    serve_until_stopped(server, listening)


def compare(
    places: Annotated[
        list[str],
        Argument(
            metavar="A B...",
            help="Runs, checkpoints or evaluation files; plain=A,B is one arm of two. One run: its evaluations.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None, Option(metavar="FILE.html", help="Write a page too: curves and questions side by side.")
    ] = None,
    allow_code: AllowCode = False,
    as_json: AsJson = False,
) -> None:
    """Compare runs, checkpoints or evaluation files.

    Paired differences on the same questions with 95 % intervals and p-values, over questions and, where an arm has
    several runs, over runs. Figures of a family of your own that a run names are compared with --allow-code.
    """
    from sleuth.own.families import use
    from sleuth.report.arms import read_arms
    from sleuth.report.comparison import compare as compare_arms
    from sleuth.runs.chain import warning
    from sleuth.runs.progress import progress_bar

    if out is not None and out.suffix != ".html":
        raise SleuthError(f"--out {out}: should be FILE.html: a comparison is one page")
    arms = read_arms(places)
    members = [member for arm in arms for member in arm.members]
    lines = [member.run.warning if member.run else warning(member.file.absolute().parent.parent) for member in members]
    for line in filter(None, dict.fromkeys(lines)):
        typer.echo(line, err=True)
    runs = [member.run for member in members if member.run]
    for name in dict.fromkeys(str(name) for run in runs for name in run.recipe.get("families", ()) if allow_code):
        use(name)
    with progress_bar("compare") as progress:
        comparison = compare_arms(arms, progress)
    if out is not None:
        from sleuth.report.page import write_comparison

        write_comparison(comparison, out)
    if as_json:
        show(as_json, comparison.as_json())
        return
    _print(comparison)
    typer.echo(out if out else "Add --out FILE.html for the training curves and the questions side by side.")


def _print(comparison: Comparison) -> None:
    from sleuth.runs.progress import Console

    for arm in comparison.arms:
        typer.echo(f"{arm.name}: {', '.join(str(member.file) for member in arm.members)}")
    for line in (*comparison.headlines, *comparison.notes, *comparison.protocols):
        typer.echo(folded(line))
    for key, values in comparison.recipes.items():
        typer.echo(f"Recipes differ in {key}: " + ", ".join(f"{name} {value}" for name, value in values.items()) + ".")
    narrow = Console().width < WIDE
    pairs = list(comparison.became)
    only = pairs[0] if len(pairs) == 1 else None  # else one table of levels, and one for each pair
    tables = [(comparison.names, only), *(([], pair) for pair in pairs if only is None)]
    figures = [(key, key, found) for key, found in comparison.figures.items()]
    for names, pair in tables:
        _print_compared(comparison.mean or "figure", figures, names, pair, narrow)
    for key in comparison.leading if comparison.mean else ():
        sets = [(name or comparison.mean, key, one) for name, one in comparison.compared[key].items()]
        for names, pair in tables:
            _print_compared(f"{key} by set", sets, names, pair, narrow)
    _print_outcomes(comparison)
    typer.echo(folded(LEGEND))


def _print_compared(
    heading: str, rows: list[tuple[str, str, Compared]], names: list[str], pair: Pair | None, narrow: bool
) -> None:
    """One row per label, figure and what was compared: its level in each of `names` and the difference of `pair`; in a
    narrow terminal, intervals get lines of their own."""
    from sleuth.evaluation.figures import figure

    table: list[list[str]] = []
    for _, key, found in rows:
        digits = figure(key).digits
        form, bound = (f".{number}f" for number in (digits, min(digits, 2)))  # bounds short, so that two arms fit
        cells = [found.levels[name].bracketed(form, bound) for name in names]
        if pair:
            cells += _difference(found.differences[pair], f"+{form}", f"+{bound}")
        table.append([cell.replace(" [", "\n[") if narrow else cell for cell in cells])
    over = f"{pair[1]} minus {pair[0]}" if pair else None
    headings = [*names, *((over if names else "difference", "p", "n") if over else ())]
    columns = [Column(heading=str(name), cells=[row[at] for row in table]) for at, name in enumerate(headings)]
    print_columns([label for label, *_ in rows], columns, heading=heading, title=None if names else over)


def _print_outcomes(comparison: Comparison) -> None:
    from sleuth.answers.failures import MODES

    totals = {name: sum(counts.values()) for name, counts in comparison.modes.items()}
    modes: list[Mode] = [mode for mode in MODES if any(comparison.modes[name][mode] for name in comparison.names)]
    columns = []
    for name in comparison.names:
        counts = [comparison.modes[name][mode] for mode in modes]
        columns.append(Column(heading=name, cells=[f"{count:,} ({count / totals[name]:.0%})" for count in counts]))
    print_columns([MODES[mode] for mode in modes], columns, heading="what became of the questions")


def _difference(found: Difference | None, form: str, bound: str) -> list[str]:
    if found is None:
        return ["none", "", "0"]
    return [
        found.measured.bracketed(form, bound),
        "<0.001" if found.p < 0.001 else f"{found.p:.3f}",
        f"{found.measured.n:,}",
    ]
