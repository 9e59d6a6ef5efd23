"""The `sleuth` command line in this process."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from sleuth.cli.app import app


def sleuth(*arguments: object) -> Result:
    """The output and exit status of a command."""
    return CliRunner().invoke(app, list(map(str, arguments)), prog_name="sleuth")
