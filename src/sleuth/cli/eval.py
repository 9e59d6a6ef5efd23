"""`sleuth eval`: a checkpoint asked a file of questions or a suite of sets, under its own protocol unless told
otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sleuth.cli import eval_options as options
from sleuth.cli.eval_reasoning import evaluate_reasoning
from sleuth.cli.eval_win_rate import evaluate_win_rate
from sleuth.cli.figures import measured_in, print_figures, print_sets
from sleuth.cli.heavy import import_heavy
from sleuth.cli.options import (
    ContextTokens,
    Dialect,
    FiguresAsJson,
    ForcedSearch,
    Index,
    Precision,
    Prompt,
    PromptRole,
    Questions,
)
from sleuth.cli.out_file import require_file
from sleuth.types import Episode, Score, SleuthError, Task

if TYPE_CHECKING:
    from sleuth.evaluation.eval_session import EvalSession
    from sleuth.recipe.data import AskWith

    OpenSession = Callable[[Sequence[Task]], tuple[EvalSession, list[str]]]
    """A checkpoint as the options say, for these tasks, and what is to be said of that."""


def evaluate(
    typed: typer.Context,
    model: Annotated[str, typer.Argument(help="A checkpoint, a model folder or a hub id.", show_default=False)],
    questions: Questions = None,
    suite: options.Suite = None,
    per_set: options.PerSet = None,
    ask_with: options.AskedWith = None,
    index: Index = None,
    retriever: options.Retrievers = None,
    dialect: Dialect = None,
    prompt: Prompt = None,
    prompt_role: PromptRole = None,
    context: ContextTokens = None,
    samples: options.Samples = 1,
    limit: options.Limit = None,
    forced_search: ForcedSearch = None,
    scorer: options.Scorer = None,
    engine: options.Server = None,
    served_as: options.ServedAs = None,
    refiner: options.RefinedBy = None,
    slots: options.Slots = 64,
    dtype: Precision = None,
    out: options.Out = None,
    rows: options.Rows = None,
    min_citation_f1: options.MinCitationF1 = 0.8,
    win_rate: options.WinRate = None,
    against: options.Against = None,
    reasoning: options.Reasoning = None,
    as_json: FiguresAsJson = False,
) -> None:
    """Ask a model questions: greedy, one sample each; figures with 95 % intervals."""
    if reasoning is not None:
        options.REASONING.require(typed)
        return evaluate_reasoning(model, reasoning, out, as_json)
    if win_rate is not None:
        options.WIN_RATE.require(typed)
        return evaluate_win_rate(model, win_rate, against, out, as_json)
    _require_one(typed, questions, suite, rows)
    _require_servers(engine, served_as, dtype, index, retriever or [])
    if suite is not None and ask_with == "prompt":
        raise SleuthError("--ask-with prompt is for --questions: the sets of a suite bring questions alone")
    _require_there([model, *([refiner] if refiner else [])], questions, suite, index)

    import_heavy()
    from sleuth.evaluation.eval_session import open_eval_session

    open_session = partial(
        open_eval_session,
        model,
        index=index,
        urls=retriever or [],
        dialect=dialect,
        prompt=prompt,
        prompt_role=prompt_role,
        context=context,
        samples=samples,
        forced_search=forced_search,
        slots=slots,
        dtype=dtype,
        scorer=scorer,
        engine=engine,
        served_as=served_as,
    )
    if refiner is not None:
        open_session = partial(_refined, open_session, refiner, dtype)
    if suite is not None:
        return _ask_suite(open_session, model, suite, per_set, out=out, as_json=as_json)
    assert questions is not None
    answered, session = _ask_questions(open_session, model, questions, limit, ask_with, out=out, as_json=as_json)
    if rows is not None:
        from sleuth.annotation.keep_rows import keep_rows

        kept = keep_rows(rows, answered, session, model=model, questions=str(questions), bar=min_citation_f1)
        typer.echo(kept, err=True)


def _refined(
    open_session: OpenSession, refiner: str, dtype: str | None, tasks: Sequence[Task]
) -> tuple[EvalSession, list[str]]:
    """The agent, with a refiner between it and what it searches."""
    from sleuth.evaluation.refined_search import with_refiner

    session, notes = open_session(tasks)
    refined, more = with_refiner(session, refiner, dtype=dtype)
    return refined, notes + more


def _ask_suite(
    open_session: OpenSession,
    model: str,
    suite: Path,
    per_set: int | None,
    *,
    out: Path | None,
    as_json: bool,
) -> None:
    from sleuth.data.suites import load_suite
    from sleuth.evaluation.evaluate import ask_suite

    asked = load_suite(suite, per_set)
    session = _opened(open_session, asked.tasks, asked.notes, out)
    _tell(ask_suite(session, asked, name=Path(model).name, model=model, file=out), out, as_json)


def _ask_questions(
    open_session: OpenSession,
    model: str,
    questions: Path,
    limit: int | None,
    ask_with: AskWith | None,
    *,
    out: Path | None,
    as_json: bool,
) -> tuple[list[tuple[Episode, Score]], EvalSession]:
    from sleuth.data.questions import load_questions
    from sleuth.evaluation.evaluate import evaluation

    tasks = load_questions(questions, with_prompt=(ask_with or _trained_with(model)) == "prompt")[:limit]
    session = _opened(open_session, tasks, (), out)
    answered = session.ask(tasks, "evaluate")
    _tell(evaluation(answered, session, name=Path(model).name, model=model), out, as_json)
    return answered, session


def _opened(open_session: OpenSession, tasks: Sequence[Task], notes: Sequence[str], out: Path | None) -> EvalSession:
    """Ready to be asked, and `out` to be written."""
    session, warnings = open_session(tasks)
    for warning in (*warnings, *notes):
        typer.echo(f"note: {warning}", err=True)
    if out is not None:
        require_file(out)
    return session


def _trained_with(model: str) -> AskWith:
    from sleuth.runs.protocol import ProtocolCard

    card = ProtocolCard.read(Path(model)) if Path(model).is_dir() else None
    return card.ask_with if card else "question"


def _require_one(typed: typer.Context, questions: Path | None, suite: Path | None, rows: Path | None) -> None:
    """Raises SleuthError unless one of the two is asked, with options that have a part in that."""
    both = questions is not None and suite is not None
    if not both:
        asked = options.QUESTIONS if rows is None else options.KEEPING_ROWS
        (options.SUITE if suite is not None else asked).require(typed)
    if both or (questions is None and suite is None):
        raise SleuthError("give --questions FILE or --suite FOLDER, one of the two")
    if rows is not None and rows.suffix != ".jsonl":
        raise SleuthError(f"--rows {rows}: should be a .jsonl file")
    if rows is not None and rows.exists():
        raise SleuthError(f"--rows {rows}: exists; name a new file")


def _require_servers(
    engine: str | None, served_as: str | None, dtype: str | None, index: Path | None, retrievers: list[str]
) -> None:
    for option, url in [("--engine", engine), *(("--retriever", url) for url in retrievers)]:
        if url is not None and not url.startswith(("http://", "https://")):
            raise SleuthError(f"{option} {url}: should be http://HOST:PORT")
    if engine is not None and dtype is not None:
        raise SleuthError(f"--dtype {dtype} is for a model in this process; the server at {engine} has its own")
    if engine is None and served_as is not None:
        raise SleuthError(f"--served-as {served_as} is for a server; give its URL too: --engine URL")
    if index is not None and retrievers:
        raise SleuthError("--index and --retriever are both given: passages come from one of them")


def _require_there(models: Sequence[str], questions: Path | None, suite: Path | None, index: Path | None) -> None:
    from sleuth.model_path import require_model
    from sleuth.plan.inputs import require_file, require_index, require_suite

    for model in models:
        require_model(model)
    for place, require in ((questions, require_file), (suite, require_suite), (index, require_index)):
        if place is not None:
            require(place)


def _tell(contents: dict[str, Any], out: Path | None, as_json: bool) -> None:
    """What was found, but for the records: a line, a table, or a table of sets. All of it is written to `out`."""
    from sleuth.runs.eval_file import write_eval

    if out is not None:
        write_eval(out, contents)
    figures = {name: figure for name, figure in contents.items() if name not in ("records", "protocol")}
    if as_json:
        typer.echo(json.dumps(figures))
    elif "sets" in contents:
        print_sets(contents["name"], contents)
    else:
        _print_table(contents["name"], figures)


def _print_table(title: str, figures: dict[str, Any]) -> None:
    print_figures(title, measured_in(figures))
    typer.echo("outcomes: " + ", ".join(f"{name} {count}" for name, count in figures["outcomes"].items()))
