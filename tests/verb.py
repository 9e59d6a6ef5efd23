"""The `sleuth` command line in this process, and files of rows for it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from sleuth.cli.app import app


def sleuth(*arguments: object, **variables: str) -> Result:
    """The output and exit status of a command."""
    return CliRunner().invoke(app, list(map(str, arguments)), prog_name="sleuth", env=variables)


def refusal(*arguments: object) -> str:
    """The only line of a command that ends with status 2, without its `error: `."""
    result = sleuth(*arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    assert result.stderr.startswith("error: ")
    return result.stderr.removeprefix("error: ").rstrip("\n")


def printed_json(*arguments: object, status: int = 0) -> Any:
    """The object that a command prints with `--json`, on the only line of its output."""
    result = sleuth(*arguments, "--json")
    assert (result.exit_code, result.stdout.count("\n")) == (status, 1), result.output
    return json.loads(result.stdout)


def write_rows(file: Path, rows: Iterable[object]) -> Path:
    """A JSON Lines file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file
