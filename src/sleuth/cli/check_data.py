"""`sleuth check DATA`: everything that is wrong with questions, before anything is trained or measured on them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.metrics.data_check import DataReport, Findings


def is_data(what: Path) -> bool:
    """Whether this is a file of questions, or a folder of test sets; both may lie on the hub."""
    from sleuth.data.hub import HubLocation
    from sleuth.data.rows import ENDINGS
    from sleuth.data.suites import sets_in

    return HubLocation.read(what) is not None or what.name.endswith(ENDINGS) or (what.is_dir() and bool(sets_in(what)))


def check_data(what: Path, against: Path | None, as_json: bool) -> None:
    """Print what was found; raises SleuthError where a run would refuse the data."""
    from sleuth.cli.watching import counted
    from sleuth.metrics import data_check

    found = data_check.check_data(what, against, counted(f"check {what}"))
    if as_json:
        typer.echo(
            json.dumps(
                {"data": str(what), "against": against and str(against), "ok": not found.refused} | asdict(found)
            )
        )
    else:
        _print(what, against, found)
    if found.refused:
        raise SleuthError(
            f"{what}: of {found.rows:,} rows, malformed: {found.malformed.count:,}, with a repeated id: "
            f"{found.repeated_ids.count:,}; a run takes none of them until these are mended"
        )
    if not found.rows:
        raise SleuthError(f"{what}: no questions in it")


def print_sources(sources: Mapping[str, int]) -> None:
    """How many rows of each source, where any names one."""
    if len(sources) > 1 or "" not in sources:
        for source, count in sources.items():
            typer.echo(f"  {count:>9,}  {source or '(no source)'}")


def _print(what: Path, against: Path | None, found: DataReport) -> None:
    typer.echo(f"{what}: {found.rows:,} rows, {sum(found.sources.values()):,} questions")
    print_sources(found.sources)
    print_findings("malformed rows", found.malformed)
    print_findings("ids that an earlier row has", found.repeated_ids)
    print_findings("questions that an earlier row asks", found.repeated_questions)
    print_findings("golden answers that are empty once normalised", found.empty_answers)
    if found.tool_outputs:
        typer.echo(f"tool outputs to refine: {found.tool_outputs:,}")
        print_findings("answers that cite what their tool output does not have", found.unknown_citations)
    if found.overlap is not None:
        print_findings(f"questions that {against} asks too", found.overlap)


def print_findings(what: str, found: Findings) -> None:
    """How often something was found, and the first few of it."""
    typer.echo(f"{what}: {found.count:,}")
    for line in found.first:
        typer.echo(f"  {line}")
    if found.count > len(found.first):
        typer.echo(f"  and {found.count - len(found.first):,} more")
