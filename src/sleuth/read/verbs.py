"""`sleuth annotate questions`: questions made of a corpus."""

from __future__ import annotations

import json
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Annotated

import typer

from sleuth.host.threads import to_stderr
from sleuth.terminal.options import AsJson, NoCode
from sleuth.training.heavy import import_heavy
from sleuth.types import SleuthError


def questions(
    corpus: Annotated[Path, typer.Argument(metavar="CORPUS", help="A corpus file, an index, or a folder with both.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write; an existing one is continued.")],
    teacher: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file with a [teacher] table: the model that writes.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Without a teacher: the model itself writes.", show_default=False),
    ] = None,
    kinds: Annotated[
        str | None,
        typer.Option(metavar="KINDS", help="Of cloze, form, one_hop, two_hop, unanswerable.", show_default=False),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="GATE", help="A gate to switch off; repeatable.", show_default=False)
    ] = None,
    held_out: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Questions that none may repeat; repeatable.", show_default=False),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only so many passages.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split, the passages and the clozes.")] = 0,
    as_json: AsJson = False,
    no_code: NoCode = False,
) -> None:
    """Make questions of a corpus, split by document.

    Without a model they are clozes and question forms. A teacher, or a MODEL with a chat template, writes them. Each
    has to pass the gates. The same command continues where it stopped. Writes train.jsonl, test.jsonl and card.json.
    """
    from sleuth.recipe.load import load_teacher
    from sleuth.terminal.recipe_inputs import missing_inputs

    writing = load_teacher(teacher, missing_inputs) if teacher is not None else None
    if writing is not None and model is not None:
        raise SleuthError("--teacher and --model are both given; one of them asks and answers")
    if not corpus.exists():
        raise SleuthError(f"{corpus}: no such file or folder")

    import_heavy()
    from sleuth.judges.factory import LAUNCHER, open_client
    from sleuth.read.gates import GATES
    from sleuth.read.made_questions import KINDS, UNAIDED, WRITTEN, make_questions, open_sources
    from sleuth.read.writers import Writer, model_of
    from sleuth.runs.progress import progress_bar
    from sleuth.training.servers import RunServers

    by = model_of(model) if model is not None else None
    out.mkdir(parents=True, exist_ok=True)
    if writing is not None:
        by = Writer(asked=cache(partial(open_client, writing, out / "teacher")), named=writing.model)
    chosen = [*kinds.split(",")] if kinds else [*(UNAIDED if by is None else WRITTEN)]
    wrong = [f"--kinds {one}: there are {', '.join(KINDS)}" for one in chosen if one not in KINDS]
    wrong += ["--kinds one_hop: needs a --teacher, or a --model that writes"] * ("one_hop" in chosen and by is None)
    wrong += [f"--without {one}: the gates are {', '.join(GATES)}" for one in without or () if one not in GATES]
    if wrong:
        raise SleuthError(*wrong)
    sources = open_sources(corpus, out, limit=limit, seed=seed)
    servers = RunServers(None, out / "servers", to_stderr)
    with closing(servers), LAUNCHER.starting(servers.serve), progress_bar("questions") as progress:
        card = make_questions(
            sources,
            out,
            kinds=chosen,
            writer=by,
            off=without or (),
            held_out=held_out or (),
            seed=seed,
            progress=progress,
        )
    if as_json:
        typer.echo(json.dumps(card))
        return
    typer.echo(f"{out}: {card['rows']['train']:,} questions to train on and {card['rows']['test']:,} to test with")
    for kind, count in card["made"].items():
        typer.echo(f"{kind:<12} {count:6,} made, {card['kept'].get(kind, 0):6,} kept")
    for gate, fell in card["fell"].items():
        typer.echo(f"{sum(fell.values()):6,} fell at {gate:<11} {GATES.get(gate, '')}".rstrip())
