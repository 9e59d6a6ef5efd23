"""`sleuth report`: writes a run's report as one HTML page."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, finished or not.")],
    all_rollouts: Annotated[
        bool, typer.Option("--all-rollouts", help="Show every stored episode, from files beside the page.")
    ] = False,
) -> None:
    """Write a run's report: one HTML page that opens offline.

    RUN/report.html shows the figures, the curves and some of the episodes. It needs no network and no other file.

    With --all-rollouts it shows all episodes, and needs RUN/report_rollouts beside it, which is about as large as
    RUN/rollouts.
    """
    from sleuth.report import write_report

    typer.echo(write_report(run, all_rollouts=all_rollouts, warn=partial(typer.echo, err=True)))
