"""`sleuth annotate`: data made by a teacher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sleuth.stages.annotate_rubrics import Annotated as Found

annotate = typer.Typer(help="Data made by a teacher.", no_args_is_help=True, rich_markup_mode=None)
REASONS = 3  # shown of why rows have no criteria


@annotate.callback()
def _annotate() -> None:
    """Data made by a teacher."""


@annotate.command("rubrics")
def rubrics(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Rows of questions (.jsonl, .jsonl.gz, .parquet).")],
    teacher: Annotated[Path, typer.Option(metavar="FILE", help="A file with a [teacher] table: who writes.")],
    out: Annotated[Path, typer.Option(metavar="FILE.jsonl", help="Where the rows go; continued if it is there.")],
    judge: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file with a [judge] table: who tries them.", show_default=False),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many rows.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write criteria for each question with a teacher: one to five, wanted and not wanted, with title and description.

    With a judge, criteria that do not tell the row's own answer from spoiled ones go to a file of their own, beside the
    other. Begun again, it goes on where it ended.
    """
    from sleuth.build import judge_of, rubric_writer_of
    from sleuth.cli.watching import watched
    from sleuth.recipe.parts import load_judge, load_teacher
    from sleuth.stages.annotate_rubrics import annotate_rubrics

    tries = judge_of(load_judge(judge)).judge if judge is not None else None
    writer = rubric_writer_of(load_teacher(teacher))
    with watched("rubrics") as progress:
        found = annotate_rubrics(data, out, writer, tries, limit=limit, progress=progress)
    if as_json:
        typer.echo(json.dumps(found.as_json()))
    else:
        _print(found, out)
    if found.reasons:
        raise typer.Exit(1)


def _print(found: Found, out: Path) -> None:
    told = f"{out}: {found.kept:,} rows more with criteria"
    told += f", {found.known:,} from before" if found.known else ""
    typer.echo(told + (f"; {found.left_out:,} left out, whose criteria tell too little" if found.left_out else ""))
    for way, share in found.shares().items():
        shown = f"{share.value:.2f} ({share.low:.2f} to {share.high:.2f}) of {share.n:,}"
        typer.echo(f"better than {way.replace('_', ' '):<16} {shown}")
    for reason, count in found.reasons.most_common(REASONS):
        typer.echo(f"{count:,} without criteria: {reason}")
    if found.reasons:
        typer.echo("the same command asks for those again")
