"""`sleuth annotate`: a teacher model writes data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sleuth.host.threads import PROCESS
from sleuth.terminal.heavy import import_heavy
from sleuth.terminal.options import AsJson

if TYPE_CHECKING:
    from sleuth.cite.annotate_rubrics import Annotated as AnnotatedRows
    from sleuth.think.annotate import AnnotatedTexts

annotate = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
SHOWN_REASONS = 3
"""Reasons to show of why rows have no criteria, or texts no thoughts."""
GATE_TOKENS = 8_192
"""Tokens of one forward pass."""


@annotate.callback()
def _annotate() -> None:
    """Let a teacher model write rubrics or thoughts."""


@annotate.command("rubrics")
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
    from sleuth.recipe.parts import load_judge, load_teacher
    from sleuth.runs.recipe_inputs import missing_inputs, require_file

    require_file(data)
    judging = load_judge(judge, missing_inputs) if judge is not None else None
    writing = load_teacher(teacher, missing_inputs)

    import_heavy()
    from sleuth.cite.annotate_rubrics import annotate_rubrics
    from sleuth.cite.rubric_writer import RubricWriter
    from sleuth.evaluation.judge_exam import accurate_judge
    from sleuth.judges.factory import open_client
    from sleuth.terminal.progress import progress_bar

    tester = (
        accurate_judge(judging, judge, ["criteria"], out).judge if judging is not None and judge is not None else None
    )
    writer = RubricWriter(open_client(writing, out))
    with progress_bar("rubrics") as progress:
        found = annotate_rubrics(data, out, writer, tester, limit=limit, progress=progress)
    if as_json:
        typer.echo(json.dumps(found.as_json()))
    else:
        _print_rubrics(found, out)
    if found.reasons:
        raise typer.Exit(1)


def _print_rubrics(found: AnnotatedRows, out: Path) -> None:
    line = f"{out}: {found.kept:,} rows more with criteria"
    line += f", {found.known:,} from before" if found.known else ""
    typer.echo(
        line + (f"; {found.left_out:,} left out, whose criteria distinguish too little" if found.left_out else "")
    )
    for way, share in found.shares().items():
        shown = f"{share.formatted('.2f')} of {share.n:,}"
        typer.echo(f"better than {way.replace('_', ' '):<16} {shown}")
    for reason, count in found.reasons.most_common(SHOWN_REASONS):
        typer.echo(f"{count:,} without criteria: {reason}")
    if found.reasons:
        typer.echo("run the same command to ask for those again")


@annotate.command("thoughts")
def thoughts(
    texts: Annotated[Path, typer.Argument(metavar="TEXTS", help="A file of texts or a folder of them; hf://... too.")],
    teacher: Annotated[
        Path, typer.Option(metavar="FILE", help="A file with a [teacher] table: the model that writes the thoughts.")
    ],
    model: Annotated[
        str,
        typer.Option(metavar="MODEL", help="The model to be trained: it tokenizes the texts and tests the thoughts."),
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE.parquet", help="The rows to write; an existing file is continued.")
    ],
    tokens: Annotated[int, typer.Option(min=8, help="Use the first so many tokens of each document.")] = 512,
    part: Annotated[
        str | None,
        typer.Option(metavar="PART", help="Only documents of this part: sft, rl or held_out.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Annotate only so many documents.")] = 8_192,
    gate: Annotated[bool, typer.Option(help="Leave out sources whose thoughts do not help MODEL.")] = True,
    as_json: AsJson = False,
) -> None:
    """Let a teacher insert thoughts into texts.

    The teacher is asked for places and thoughts, and never copies the text. The thoughts of a source are kept if they
    make the text after them likelier, to the model to be trained, than an empty thought and than sentences that fit any
    text. A data card is written beside the rows.
    """
    from sleuth.host.model_path import require_model
    from sleuth.recipe.parts import load_teacher
    from sleuth.recipe.text import text_recipe
    from sleuth.runs.recipe_inputs import missing_inputs, require_texts

    resolved = text_recipe(texts, tokens=tokens, part=part, limit=limit)
    require_texts(texts)
    require_model(model)
    writing = load_teacher(teacher, missing_inputs)

    import_heavy()
    from sleuth.judges.factory import open_client
    from sleuth.learn.models import load_model
    from sleuth.render import Renderer
    from sleuth.terminal.progress import progress_bar
    from sleuth.think.annotate import annotate_thoughts
    from sleuth.think.thought_figures import LogprobScorer
    from sleuth.think.thought_writer import ThoughtWriter

    writer = ThoughtWriter(open_client(writing, out))
    loaded, tokenizer = load_model(model, dtype=None, device="auto")
    scorer = LogprobScorer(model=loaded, renderer=Renderer(tokenizer), budget=GATE_TOKENS)
    PROCESS.announce()
    found = annotate_thoughts(resolved, out, writer, scorer, gated=gate, watch=progress_bar)
    if as_json:
        typer.echo(json.dumps(found.as_json()))
    else:
        _print_thoughts(found, out)
    if found.reasons:
        raise typer.Exit(1)


def _print_thoughts(found: AnnotatedTexts, out: Path) -> None:
    answered = f", {found.known:,} of them answered before" if found.known else ""
    typer.echo(f"{out}: {found.kept:,} of {len(found.documents):,} texts with thoughts{answered}; see {out.stem}.md")
    for gate in found.gates:
        blank, generic = (
            gain.formatted("+.4f", unmeasured="unmeasured") for gain in (gate.over_blank, gate.over_generic)
        )
        verdict = "passes" if gate.passes else "does not pass"
        typer.echo(
            f"{gate.source or '(no source)'}: over empty {blank}, over generic {generic} nats a token: {verdict}"
        )
    for reason, count in found.reasons.most_common(SHOWN_REASONS):
        typer.echo(f"{count:,} without thoughts: {reason}")
    if found.reasons:
        typer.echo("run the same command to ask for those again")
