"""`sleuth check TEXTS`: everything that is wrong with texts, before anything is trained on them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sleuth.cli.check_data import print_findings, print_sources
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.metrics.text_check import TextReport


def check_text(what: Path, against: Path | None, as_json: bool) -> None:
    """Print what was found; raises SleuthError where a run would refuse the texts."""
    from sleuth.cli.watching import counted
    from sleuth.metrics import text_check

    found = text_check.check_text(what, against, counted(f"check {what}"))
    if as_json:
        told = {"data": str(what), "against": against and str(against), "ok": not found.refused}
        typer.echo(json.dumps(told | asdict(found)))
    else:
        _print(what, against, found)
    if found.refused:
        raise SleuthError(
            f"{what}: of {found.rows:,} rows, malformed: {found.malformed.count:,}, with a repeated id: "
            f"{found.repeated_ids.count:,}; a run takes none of them until these are mended"
        )


def _print(what: Path, against: Path | None, found: TextReport) -> None:
    typer.echo(f"{what}: {found.rows:,} documents, {found.characters:,} characters")
    print_sources(found.sources)
    typer.echo("by part: " + ", ".join(f"{part} {count:,}" for part, count in found.parts.items()))
    if found.cut:
        typer.echo(f"with a place where their ending begins: {found.cut:,}")
    if found.thoughts:
        typer.echo(f"thoughts: {found.thoughts:,}")
    print_findings("malformed rows", found.malformed)
    print_findings("ids that an earlier row has", found.repeated_ids)
    print_findings("texts that an earlier row has, which a run passes over", found.repeated_texts)
    if found.thoughts or found.altered.count:
        print_findings("texts of which the copy with thoughts is another text, so that a run has none", found.altered)
    if found.overlap is not None:
        print_findings(f"texts that {against} has too", found.overlap)
