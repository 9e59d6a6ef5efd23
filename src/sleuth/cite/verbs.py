"""`sleuth annotate rubrics`: a teacher model writes grading criteria."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sleuth.terminal.options import AsJson
from sleuth.training.heavy import import_heavy

if TYPE_CHECKING:
    from sleuth.cite.annotate_rubrics import Annotated as AnnotatedRows

SHOWN_REASONS = 3
"""Reasons to show of why rows have no criteria."""


def rubrics(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Rows of questions (.jsonl, .jsonl.gz, .parquet).")],
    teacher: Annotated[
        Path, typer.Option(metavar="FILE", help="A file with a [teacher] table: the model that writes.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE.jsonl", help="The rows to write; an existing file is continued.")],
    judge: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A file with a [judge] table: the model that tests the criteria.", show_default=False
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Annotate only the first so many rows.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let a teacher write grading criteria for each question.

    One to five per question, wanted and unwanted, with title and description. With a judge, criteria that do not
    distinguish the row's own answer from spoiled ones go to a separate file beside the other. The same command
    continues where it stopped. A data card is written beside the rows.
    """
    from sleuth.recipe.load import load_judge, load_teacher
    from sleuth.terminal.recipe_inputs import missing_inputs, require_file

    require_file(data)
    judging = load_judge(judge, missing_inputs) if judge is not None else None
    writing = load_teacher(teacher, missing_inputs)

    import_heavy()
    from sleuth.cite.annotate_rubrics import annotate_rubrics
    from sleuth.evaluation.judge_exam import accurate_judge
    from sleuth.judges.factory import open_client
    from sleuth.runs.progress import progress_bar

    tester = accurate_judge(judging, judge, ["criteria"], out).judge if judging and judge else None
    with progress_bar("rubrics") as progress:
        made = annotate_rubrics(data, out, open_client(writing, out), tester, limit=limit, progress=progress)
    if as_json:
        typer.echo(json.dumps(made.as_json()))
    else:
        _print_rubrics(made, out)
    if made.reasons:
        raise typer.Exit(1)


def _print_rubrics(made: AnnotatedRows, out: Path) -> None:
    from sleuth.cite.annotate_rubrics import separated_shares

    known = f", {made.known:,} from before" if made.known else ""
    left_out = f"; {made.left_out:,} left out, whose criteria distinguish too little" if made.left_out else ""
    typer.echo(f"{out}: {made.kept:,} rows more with criteria{known}{left_out}")
    for way, share in separated_shares(made.separated).items():
        typer.echo(f"better than {way.replace('_', ' '):<16} {share.formatted('.2f')} of {share.n:,}")
    for reason, count in made.reasons.most_common(SHOWN_REASONS):
        typer.echo(f"{count:,} without criteria: {reason}")
    if made.reasons:
        typer.echo("run the same command to ask for those again")
