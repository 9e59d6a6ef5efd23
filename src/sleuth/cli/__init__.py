"""The verbs of the command line. Holds no logic, and imports what a verb needs when it runs: help is instant."""

from __future__ import annotations

from sleuth.cli.app import app


def main() -> None:
    """The `sleuth` command. Exit status: 0 done, 1 the run failed, 2 the input was wrong, 3 an alarm or a gate
    paused the run, 130 stopped by Ctrl-C, 143 by SIGTERM."""
    app(prog_name="sleuth")
