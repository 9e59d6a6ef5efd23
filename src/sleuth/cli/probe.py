"""`sleuth probe`: whether a model uses what it looks up, or what it thinks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sleuth.cli.figures import cell
from sleuth.cli.heavy import import_heavy
from sleuth.cli.modes import Mode
from sleuth.cli.options import FiguresAsJson, Prompt, Questions
from sleuth.cli.out_file import require_file
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.metrics.intervals import Measured

QUESTIONS = 200
ARMS = {"em": "EM", "em_one_hop": "one hop", "em_two_hop": "two hops", "difference": "difference"}
GAINS = {"gain": "what followed", "found_gain": "words found", "answer_gain": "last turn", "idle": "idle"}
PASSAGES = GAINS | {"ahead": "ahead"}
SNIPPETS = {"gain": "gain", "ahead": "ahead"}


THINKS = Mode(
    uses=frozenset({"thoughts", "limit", "out", "as_json"}),
    why="is for looking things up, and --thoughts for thoughts; leave one of them out",
)


def probe(
    typed: typer.Context,
    model: Annotated[str, typer.Argument(help="A checkpoint, a model folder or a hub id.", show_default=False)],
    questions: Questions = None,
    index: Annotated[Path | None, typer.Option(help="The index to search.")] = None,
    thoughts: Annotated[
        Path | None, typer.Option(help="Probe thoughts instead, as the probe stage of this recipe does.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many questions (200 by default) or places.")
    ] = None,
    dialect: Annotated[str | None, typer.Option(help="Search protocol, for a model that carries none.")] = None,
    prompt: Prompt = None,
    out: Annotated[Path | None, typer.Option(help="Write figures and every single gain to this JSON file.")] = None,
    as_json: FiguresAsJson = False,
) -> None:
    """Whether a model uses what it looks up, or what it thinks: the same without it, or with another's.

    Four arms answer the same questions: as it is; with the answer opened at once; with a search engine that finds
    nothing; with passages of other questions. Then each search of the first arm, and each passage, is taken away in
    turn: its gain is how much likelier it made what was written after it, in nats.

    With --thoughts, its own thoughts in texts stand against none, empty phrases, those of other texts, those of other
    places, and a teacher's; whether they are of use is kept as thoughts.json in the model's folder.
    """
    if thoughts is not None:
        from sleuth.cli.probe_thoughts import probe_thoughts

        THINKS.require(typed)
        return probe_thoughts(model, thoughts, limit, out, as_json)
    if questions is None:
        raise SleuthError("name --questions FILE, with --index DIR unless it refines, or --thoughts RECIPE")
    from sleuth.model_path import require_model
    from sleuth.plan.inputs import require_file as require_questions
    from sleuth.plan.inputs import require_index

    require_model(model)
    require_questions(questions)
    if index is not None:
        require_index(index)

    import_heavy()
    from sleuth.data.questions import load_questions
    from sleuth.evaluation.eval_session import open_eval_session
    from sleuth.evaluation.probe import MARGIN
    from sleuth.evaluation.probe import probe as probed
    from sleuth.factories import RefineSetting, SearchSetting
    from sleuth.runs.eval_file import write_eval

    tasks = load_questions(questions)[: limit or QUESTIONS]
    session, notes = open_eval_session(model, tasks, index=index, dialect=dialect, prompt=prompt)
    if index is None and isinstance(session.setting, SearchSetting):
        raise SleuthError(f"{model} searches: name what it searches, --index DIR")
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    if out is not None:
        require_file(out)
    found = probed(session, tasks)
    contents = {"name": Path(model).name, "model": model, "questions": len(tasks)} | found.as_json()
    if out is not None:
        write_eval(out, contents)
    if as_json:
        typer.echo(json.dumps({key: value for key, value in contents.items() if key != "records"}))
        return
    if isinstance(session.setting, RefineSetting):
        _print("what a snippet was worth to a claim, in nats", SNIPPETS, found.snippets)
        typer.echo("Ahead: of the claims, those to which a snippet that they cite was worth more than any other.")
        return
    _print(f"{len(tasks)} questions, exact match", ARMS, found.arms)
    _print("what a search was worth, in nats", GAINS, found.searches)
    _print("what a passage was worth, in nats", PASSAGES, found.passages)
    typer.echo(
        "Ahead: of the searches behind right answers, those in which the gold passage was worth more than any other. "
        f"Idle: words found gained at most {MARGIN:g} nat. Intervals are of 95 %, clustered by question."
    )


def _print(title: str, columns: Mapping[str, str], rows: Mapping[str, Mapping[str, Measured]]) -> None:
    """One line a row, each figure over its interval, and how many questions are behind the first."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for heading in (*columns.values(), "n"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, figures in rows.items():
        cells = [cell(figures.get(key)) for key in columns]
        table.add_row(name, *cells, f"{next(iter(figures.values())).n:,}")
    typer.echo(title)
    Console().print(table)
