"""`sleuth eval`: a model answers questions under its own protocol, unless options change it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from sleuth.cli.app import FAILED
from sleuth.host.memory import DEFAULT_SLOTS
from sleuth.host.threads import PROCESS
from sleuth.terminal import options
from sleuth.terminal.inputs import prepare_out_file, require_engine, require_inputs, require_passages, require_unset
from sleuth.terminal.tables import print_figures, print_notes, print_sets, show_measured
from sleuth.training.heavy import import_heavy
from sleuth.types import SleuthError, Task

if TYPE_CHECKING:
    from sleuth.evaluation.eval_session import EvalSession

ASKED = {
    *("index", "retriever", "engine", "served_as", "dialect", "prompt", "prompt_role", "context", "samples"),
    *("forced_search", "closed_book", "scorer", "slots", "dtype", "allow_code"),
}
"""The options of how a model is asked."""


def evaluate(
    model: options.Model,
    questions: Annotated[
        Path | None,
        Option(metavar="FILE", help="Questions: .jsonl, .jsonl.gz or .parquet.", show_default=False),
    ] = None,
    suite: Annotated[
        Path | None,
        Option(
            metavar="FOLDER",
            help="Test sets instead: a folder of them (nq/test.jsonl, ...), or from the hub `seven`, those of "
            "Search-R1, or `nq_hotpotqa`, those of slime's search example.",
            show_default=False,
        ),
    ] = None,
    per_set: Annotated[
        int | None,
        Option(min=1, help="Of a suite: ask so many questions of each set, chosen by their ids: always the same."),
    ] = None,
    index: options.Index = None,
    retriever: options.Retrievers = None,
    dialect: options.Dialect = None,
    prompt: options.Prompt = None,
    prompt_role: options.PromptRole = None,
    context: options.ContextTokens = None,
    samples: options.Samples = 1,
    limit: Annotated[int | None, Option(min=1, help="Ask only the first so many questions.")] = None,
    forced_search: options.ForcedSearch = None,
    closed_book: options.ClosedBook = False,
    scorer: options.Scorer = None,
    engine: options.Engine = None,
    served_as: options.ServedAs = None,
    slots: options.Slots = DEFAULT_SLOTS,
    dtype: options.Precision = None,
    allow_code: options.AllowCode = False,
    out: options.Out = None,
    judge: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Of a MODEL that refines: a file with a [judge] table, who judges its claims. [default: lexical]",
        ),
    ] = None,
    reward: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="Measure too what [[reward]] tables give, and how an [audit_judge] judges the same."
        ),
    ] = None,
    rows: Annotated[
        Path | None,
        Option(
            metavar="FILE.jsonl",
            help="Keep rows to train a refiner on, with a data card: the results of every search, or the answers of "
            "a MODEL that refines.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Ask a model a file of questions and print its figures.

    One greedy answer per question, unless --samples says otherwise; figures have 95 % intervals. Of a suite they are
    those of each set and their unweighted mean, and --out writes each set beside the file, as FILE@SET.json.
    """
    asked = {name: value for name, value in locals().items() if name in ASKED}
    from sleuth.recipe.load import load_judge, load_rewards
    from sleuth.terminal.recipe_inputs import missing_inputs, require_suite

    if (questions is None) == (suite is None):
        raise SleuthError("what is to be asked? give --questions FILE or --suite FOLDER, one of the two")
    if suite is None:
        require_unset({"--per-set": per_set}, "is for --suite; --limit asks the first questions of a file")
    else:
        of_file = {"--limit": limit, "--judge": judge, "--reward": reward, "--rows": rows}
        require_unset(of_file, "is for a file of questions; leave it out with --suite")
        require_suite(suite)
    if rows is not None and rows.suffix != ".jsonl":
        raise SleuthError(f"--rows {rows}: should be a .jsonl file")
    if rows is not None and rows.exists():
        raise SleuthError(f"--rows {rows}: exists; name a new file")
    judging = None if judge is None else load_judge(judge, missing_inputs)
    measured = None if reward is None else load_rewards(reward, missing_inputs)
    _require_asked(model, questions, asked)

    import_heavy()
    if suite is not None:
        _report(_ask_suite(model, suite, per_set, asked, out), out, as_json)
        return
    assert questions is not None
    from sleuth.data.questions import load_questions
    from sleuth.episodes.protocol import ProtocolCard
    from sleuth.evaluation.evaluate import evaluation
    from sleuth.evaluation.judge_exam import accurate_judge
    from sleuth.judges.factory import JudgePool

    examined = None
    if judge is not None and judging is not None:
        examined = accurate_judge(judging, judge, ["claims"])
    card = ProtocolCard.read(Path(model)) if Path(model).is_dir() else None
    with_prompt = card is not None and card.ask_with == "prompt"
    answered = card is None or not card.has_own_score
    tasks = load_questions(questions, with_prompt=with_prompt, answered=answered)[:limit]
    session = _open(model, tasks, asked, (), out)
    if examined is not None:
        session = session.judged_by(examined.judge)
    with tempfile.TemporaryDirectory() as folder, JudgePool(Path(folder) / "verdicts.sqlite") as judge_pool:
        if measured is not None:
            session = session.measuring(measured, tasks, judge_pool)
        answered = session.ask(tasks, "evaluate")
    _report(evaluation(answered, session, name=Path(model).name, model=model), out, as_json)
    if rows is not None:
        from sleuth.cite.episode_rows import keep_rows

        typer.echo(keep_rows(rows, answered, session, model=model, questions=str(questions)), err=True)


def _ask_suite(model: str, place: Path, per_set: int | None, asked: dict[str, Any], out: Path | None) -> dict[str, Any]:
    """Asks the sets of a suite, and writes each beside `out`; the contents of the suite's own file."""
    from sleuth.answers.suites import load_suite
    from sleuth.evaluation.evaluate import ask_suite
    from sleuth.runs.eval_file import write_eval

    suite = load_suite(place, per_set)
    session = _open(model, suite.tasks, asked, suite.notes, out)

    def write(name: str, contents: dict[str, Any]) -> None:
        if out is not None:
            write_eval(out.with_name(f"{out.stem}@{name.rpartition('@')[2]}.json"), contents)

    return ask_suite(session, suite, name=Path(model).name, model=model, write=write)


def _require_asked(model: str, questions: Path | None, asked: dict[str, Any]) -> None:
    """Raises SleuthError where options of how a model is asked contradict each other, or an input is missing."""
    index, urls = asked["index"], asked["retriever"]
    if asked["closed_book"]:
        forced = asked["forced_search"] or None
        searching = {"--index": index, "--retriever": urls or None, "--forced-search": forced}
        require_unset(searching, "has no effect with --closed-book, which allows no search; remove one of them")
    require_passages(index, "--retriever", urls or [])
    require_engine(asked["engine"], asked["served_as"], {"--dtype": asked["dtype"]})
    require_inputs([model], questions=questions, index=index)


def _open(
    model: str, tasks: Sequence[Task], asked: dict[str, Any], notes: Sequence[str], out: Path | None
) -> EvalSession:
    """Loads the model for these tasks, prints the notes on stderr and makes the folder of `out`."""
    from sleuth.evaluation.eval_session import open_eval_session

    settings = dict(asked)
    urls = settings.pop("retriever") or ()
    session, differences = open_eval_session(model, tasks, urls=urls, **settings)
    print_notes([*differences, *notes])
    prepare_out_file(out)
    PROCESS.announce()
    return session


def _report(contents: dict[str, Any], out: Path | None, as_json: bool) -> None:
    """Prints and writes what was measured. Exits with status 1 if no episode has a score."""
    from sleuth.evaluation.evaluate import all_missing, missing_line
    from sleuth.runs.eval_file import with_digests

    contents = with_digests(contents)
    show_measured(contents, out, as_json, lambda: _print(contents))
    print_notes(filter(None, [missing_line(contents)]))
    if all_missing(contents):
        raise typer.Exit(FAILED)


def _print(contents: dict[str, Any]) -> None:
    from sleuth.evaluation.intervals import measured_in

    if "sets" in contents:
        return print_sets(contents["name"], contents)
    print_figures(contents["name"], measured_in(contents))
    typer.echo("outcomes: " + ", ".join(f"{name} {count}" for name, count in contents["outcomes"].items()))
    return None
