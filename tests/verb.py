"""`sleuth` as it is typed, in this process."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from sleuth.cli.app import app


def sleuth(*arguments: object) -> Result:
    """What a verb says, and how it ends."""
    return CliRunner().invoke(app, list(map(str, arguments)), prog_name="sleuth")
