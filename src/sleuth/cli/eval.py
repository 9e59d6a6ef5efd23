"""`sleuth eval`: a checkpoint asked a file of questions or a suite of sets, under its own protocol unless told
otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sleuth.cli.eval_reasoning import evaluate_reasoning
from sleuth.cli.eval_win_rate import evaluate_win_rate
from sleuth.cli.figures import print_figures, print_sets
from sleuth.cli.out_file import require_file
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.recipe.data import AskWith


def evaluate(
    model: Annotated[str, typer.Argument(help="A checkpoint, a model folder or a hub id.", show_default=False)],
    questions: Annotated[Path | None, typer.Option(help="Questions: .jsonl, .jsonl.gz or .parquet.")] = None,
    suite: Annotated[
        Path | None,
        typer.Option(help="Instead: test sets in a folder (nq/test.jsonl, ...), or `seven`, those of the hub."),
    ] = None,
    per_set: Annotated[
        int | None, typer.Option(min=1, help="So many questions of each set, by a hash of their ids: always the same.")
    ] = None,
    ask_with: Annotated[
        Literal["question", "prompt"] | None,
        typer.Option(
            help="What stands in the prompt: the question, or the whole message that the row brings. "
            "[default: as the model was trained]"
        ),
    ] = None,
    index: Annotated[Path | None, typer.Option(help="The index to search; without one, searches find nothing.")] = None,
    retriever: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Instead: a server such as `sleuth retriever`; again for each replica."),
    ] = None,
    dialect: Annotated[
        str | None, typer.Option(help="Search protocol, for a model that carries none, or to try another.")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="A prompt by its name, or a file, likewise.")] = None,
    prompt_role: Annotated[
        Literal["raw", "user", "system"] | None,
        typer.Option(help="The prompt as it is, or as a message of the chat template, likewise."),
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Longest episode in tokens. [default: what the model was trained with]")
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, help="Samples a question; more than one are drawn at temperature 1.")
    ] = 1,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many questions.")] = None,
    forced_search: Annotated[
        bool | None, typer.Option(help="Open the first search for the model. [default: as it was trained]")
    ] = None,
    scorer: Annotated[
        str | None, typer.Option(help="Told beside strict exact match. [default: what the model was paid by]")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="An SGLang or vLLM server that serves MODEL; its weights are not loaded here."
        ),
    ] = None,
    served_as: Annotated[
        str | None, typer.Option(metavar="NAME", help="What that server calls MODEL, if it is another name.")
    ] = None,
    slots: Annotated[
        int, typer.Option(min=1, help="Turns written at once, here or by the server; fewer take less memory.")
    ] = 64,
    dtype: Annotated[
        Literal["float32", "bfloat16"] | None,
        typer.Option(help="Precision. [default: float32 on a CPU, what the weights are stored in on a GPU]"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write figures and every record to this JSON file; of a suite, each set beside it."),
    ] = None,
    rows: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Keep rows to refine, with a card beside them: the results of every search, or a refiner's answers.",
        ),
    ] = None,
    accept: Annotated[
        float, typer.Option(min=0, max=1, help="With --rows, of a refiner: the citation F1 that an answer needs.")
    ] = 0.8,
    win_rate: Annotated[
        Path | None,
        typer.Option(
            metavar="RECIPE", help="Instead: continue texts beside another model, as the recipe's win_rate stage does."
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="MODEL", help="With --win-rate: the other model. [default: the recipe's base]")
    ] = None,
    reasoning: Annotated[
        Path | None,
        typer.Option(metavar="RECIPE", help="Instead: problems, several answers each, as the reason stage does."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as one JSON object.")] = False,
) -> None:
    """Ask a model questions: greedy, one sample each; figures with 95 % intervals."""
    if reasoning is not None:
        if any(other is not None for other in (questions, suite, win_rate)):
            raise SleuthError("--reasoning asks problems; leave out --questions, --suite and --win-rate")
        return evaluate_reasoning(model, reasoning, out, as_json)
    if win_rate is not None:
        if questions is not None or suite is not None:
            raise SleuthError("--win-rate continues texts, and --questions and --suite ask; give one of the three")
        return evaluate_win_rate(model, win_rate, against, out, as_json)
    if against is not None:
        raise SleuthError(f"--against {against} is for --win-rate RECIPE; two models are asked questions one by one")

    from sleuth.data.questions import load_questions
    from sleuth.data.suites import load_suite
    from sleuth.stages.eval_file import write_eval
    from sleuth.stages.evaluate import ask_suite, evaluation
    from sleuth.stages.examination import examination_of
    from sleuth.stages.keep_rows import keep_rows

    _require_one(questions, suite, limit, per_set)
    _require_servers(engine, served_as, dtype, index, retriever or [])
    _require_new(rows, suite)
    if suite is not None and ask_with == "prompt":
        raise SleuthError("--ask-with prompt is for --questions: the sets of a suite bring questions alone")
    if suite is not None:
        asked = load_suite(suite, per_set)
        tasks, notes = asked.tasks, asked.notes
    else:
        with_prompt = (ask_with or _trained_with(model)) == "prompt"
        asked, notes = None, ()
        tasks = load_questions(questions or Path(), with_prompt=with_prompt)[:limit]
    examination, warnings = examination_of(
        model,
        tasks,
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
    for warning in (*warnings, *notes):
        typer.echo(f"note: {warning}", err=True)
    if out is not None:
        require_file(out)
    name = Path(model).name
    answered = examination.ask(tasks, "evaluate") if asked is None else []
    if asked is not None:
        contents = ask_suite(examination, asked, name=name, model=model, file=out)
    else:
        contents = evaluation(answered, examination, name=name, model=model)
    if out is not None:
        write_eval(out, contents)
    _tell(contents, as_json)
    if rows is not None:
        kept = keep_rows(rows, answered, examination, model=model, questions=str(questions), bar=accept)
        typer.echo(kept, err=True)


def _trained_with(model: str) -> AskWith:
    from sleuth.runs.protocol import ProtocolCard

    card = ProtocolCard.read(Path(model)) if Path(model).is_dir() else None
    return card.ask_with if card else "question"


def _require_one(questions: Path | None, suite: Path | None, limit: int | None, per_set: int | None) -> None:
    if (questions is None) == (suite is None):
        raise SleuthError("give --questions FILE or --suite FOLDER, one of the two")
    if suite is not None and limit is not None:
        raise SleuthError(f"--limit {limit} is for --questions; of a suite, --per-set {limit} asks so many of each set")
    if suite is None and per_set is not None:
        raise SleuthError(f"--per-set {per_set} is for --suite; of a file, --limit {per_set} asks the first so many")


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


def _require_new(rows: Path | None, suite: Path | None) -> None:
    if rows is None:
        return
    if suite is not None:
        raise SleuthError("--rows is for --questions: a suite is there to be measured with, not to be learned from")
    if rows.suffix != ".jsonl":
        raise SleuthError(f"--rows {rows}: should be a .jsonl file")
    if rows.exists():
        raise SleuthError(f"--rows {rows}: exists; name a new file")


def _tell(contents: dict[str, Any], as_json: bool) -> None:
    """What was found, but for the records: a line, a table, or a table of sets."""
    figures = {name: figure for name, figure in contents.items() if name not in ("records", "protocol")}
    if as_json:
        typer.echo(json.dumps(figures))
    elif "sets" in contents:
        print_sets(contents["name"], contents)
    else:
        _print_table(contents["name"], figures)


def _print_table(title: str, figures: dict[str, Any]) -> None:
    from sleuth.evaluation.intervals import Measured

    print_figures(title, {name: Measured(**figure) for name, figure in figures.items() if _measured(figure)})
    typer.echo("outcomes: " + ", ".join(f"{name} {count}" for name, count in figures["outcomes"].items()))


def _measured(figure: object) -> bool:
    return isinstance(figure, dict) and "low" in figure
