"""`sleuth annotate`: data made by a teacher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sleuth.cli.heavy import import_heavy

if TYPE_CHECKING:
    from sleuth.annotation.rubrics import Annotated as Found
    from sleuth.annotation.thoughts import AnnotatedTexts

annotate = typer.Typer(help="Data made by a teacher.", no_args_is_help=True, rich_markup_mode=None)
REASONS = 3  # shown of why rows have no criteria, or texts no thoughts
GATE_TOKENS = 8_192  # computed at once


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
    from sleuth.plan.inputs import missing_inputs, require_file
    from sleuth.recipe.parts import load_judge, load_teacher

    require_file(data)
    judging = load_judge(judge, missing_inputs) if judge is not None else None
    writing = load_teacher(teacher, missing_inputs)

    import_heavy()
    from sleuth.annotation.rubrics import annotate_rubrics
    from sleuth.cli.watching import watched
    from sleuth.factories import judge_of, rubric_writer_of

    tries = judge_of(judging).judge if judging is not None else None
    writer = rubric_writer_of(writing)
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
        shown = f"{share.told('.2f')} of {share.n:,}"
        typer.echo(f"better than {way.replace('_', ' '):<16} {shown}")
    for reason, count in found.reasons.most_common(REASONS):
        typer.echo(f"{count:,} without criteria: {reason}")
    if found.reasons:
        typer.echo("the same command asks for those again")


@annotate.command("thoughts")
def thoughts(
    texts: Annotated[Path, typer.Argument(metavar="TEXTS", help="A file of texts or a folder of them; hf://... too.")],
    teacher: Annotated[Path, typer.Option(metavar="FILE", help="A file with a [teacher] table: who thinks.")],
    model: Annotated[str, typer.Option(help="The model that is to be taught: its tokens cut, and it is the gate.")],
    out: Annotated[Path, typer.Option(metavar="FILE.parquet", help="Where the rows go; begun again, it goes on.")],
    tokens: Annotated[int, typer.Option(min=8, help="Of each document its first so many tokens.")] = 512,
    part: Annotated[
        str | None, typer.Option(help="Only documents of this part: sft, rl or held_out.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Only so many documents.")] = 8_192,
    gate: Annotated[bool, typer.Option(help="Leave out sources whose thoughts do not help the model.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Put a teacher's thoughts into texts: it is asked for places and thoughts, and never copies the text.

    Thoughts of a source stay where they make the text behind them likelier, to the model that is to be taught, than an
    empty thought and than sentences that fit any text. A card is written beside the rows.
    """
    from sleuth.model_path import require_model
    from sleuth.plan.inputs import missing_inputs, require_texts
    from sleuth.recipe.parts import load_teacher
    from sleuth.recipe.text import text_recipe

    asked = text_recipe(texts, tokens=tokens, part=part, limit=limit)
    require_texts(texts)
    require_model(model)
    writing = load_teacher(teacher, missing_inputs)

    import_heavy()
    from sleuth.annotation.thoughts import annotate_thoughts
    from sleuth.cli.watching import watched
    from sleuth.evaluation.thought_figures import LogprobScorer
    from sleuth.factories import load_model, thought_writer_of
    from sleuth.render import Renderer

    writer = thought_writer_of(writing)
    loaded, tokenizer = load_model(model, dtype=None, device="auto")
    scorer = LogprobScorer(model=loaded, renderer=Renderer(tokenizer), budget=GATE_TOKENS)
    found = annotate_thoughts(asked, out, writer, scorer, gated=gate, watch=watched)
    if as_json:
        typer.echo(json.dumps(found.as_json()))
    else:
        _print_thoughts(found, out)
    if found.reasons:
        raise typer.Exit(1)


def _print_thoughts(found: AnnotatedTexts, out: Path) -> None:
    answered = f", {found.known:,} of them answered before" if found.known else ""
    typer.echo(
        f"{out}: {found.kept:,} of {len(found.documents):,} texts with thoughts{answered}; {out.stem}.md tells more"
    )
    for gate in found.gates:
        blank, generic = (gain.told("+.4f", unmeasured="unmeasured") for gain in (gate.over_blank, gate.over_generic))
        verdict = "passes" if gate.passes else "does not pass"
        typer.echo(
            f"{gate.source or '(no source)'}: over empty {blank}, over generic {generic} nats a token: {verdict}"
        )
    for reason, count in found.reasons.most_common(REASONS):
        typer.echo(f"{count:,} without thoughts: {reason}")
    if found.reasons:
        typer.echo("the same command asks for those again")
