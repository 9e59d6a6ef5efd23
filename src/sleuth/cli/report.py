"""`sleuth report`: writes a run's report as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, finished or not.")],
) -> None:
    """Write a run's report: one HTML page that opens offline.

    RUN/report.html shows the figures, the curves and the episodes. It needs no network and no other file.
    """
    from sleuth.report import write_report

    typer.echo(write_report(run))
