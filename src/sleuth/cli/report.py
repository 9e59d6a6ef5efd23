"""`sleuth report` and `sleuth watch`: the report of a run as one HTML page, and of runs while they train."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sleuth.cli.http_server import ApiKey, Host, Insecure, PerClient, access_of, address_of, listen, run, server_of


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


def watch(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Run folders, at most 8; an empty one is a run to come.", show_default=False
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8080,
    host: Host = "127.0.0.1",
    api_key: ApiKey = None,
    insecure: Insecure = False,
    per_client: PerClient = None,
) -> None:
    """Serve the reports of runs under way, which update themselves.

    Above each report stand the state and the alarms of its run, and the states of the others. Reads the folders and
    writes nothing.
    """
    from sleuth.report.live import live_reports
    from sleuth.serve.watch import watch_app

    reports = live_reports(runs)
    listening = listen(host, port)
    access = access_of(host, api_key=api_key, insecure=insecure, per_client=per_client)
    server = server_of(watch_app(reports, access))
    typer.echo(f"{', '.join(map(str, runs))}: at {address_of(host, listening)}/ until Ctrl-C")
    run(server, listening)
