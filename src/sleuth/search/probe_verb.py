"""`sleuth probe` and `sleuth probe-thoughts`: whether a model uses what it retrieves, and whether its thoughts help."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sleuth.host.threads import PROCESS
from sleuth.terminal import options
from sleuth.terminal.figures import measured_in, table_cell
from sleuth.terminal.heavy import import_heavy
from sleuth.terminal.inputs import load_stage, prepare_out_file, require_engine, require_inputs
from sleuth.terminal.tables import Column, print_columns
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.evaluation.intervals import Measured

ARM_COLUMNS = {
    "em": "EM",
    "em_one_hop": "one hop",
    "em_two_hop": "two hops",
    "difference": "difference",
    "obeyed": "obeyed",
}
SEARCH_COLUMNS = {"gain": "what followed", "found_gain": "words found", "answer_gain": "last turn", "idle": "idle"}
PASSAGE_COLUMNS = SEARCH_COLUMNS | {"ahead": "ahead"}
SNIPPET_COLUMNS = {"gain": "gain", "ahead": "ahead"}
THOUGHT_ARMS = ("sampled", "blank", "generic", "swapped", "within", "teacher")


def probe(
    model: options.Model,
    questions: options.Questions,
    index: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The index to search; required unless MODEL refines.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Ask only the first so many questions.")] = 200,
    dialect: options.Dialect = None,
    prompt: options.Prompt = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="An SGLang or vLLM server that serves MODEL, to answer; gains are computed here."
        ),
    ] = None,
    served_as: options.ServedAs = None,
    out: options.Out = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure whether a model uses what it retrieves.

    Seven arms answer the same questions: the model as it is; with the answer opened at once; with a search engine that
    finds nothing; with passages of other questions; and with passages that end in sentences of others, in one word
    repeated, or in an order to give another answer. Then each search of the first arm, and each passage, is removed in
    turn: its gain is how much likelier it made the text after it, in nats. Of a refiner, the gain of each snippet to
    the claims that cite it.
    """
    require_engine(engine, served_as, {})
    require_inputs([model], questions=questions, index=index)

    import_heavy()
    from sleuth.data.questions import load_questions
    from sleuth.evaluation.eval_session import open_eval_session
    from sleuth.learn.models import load_model
    from sleuth.recipe.envs import compares_answers
    from sleuth.runs.eval_file import with_digests, write_eval
    from sleuth.search.probe import MARGIN
    from sleuth.search.probe import probe as probe_session
    from sleuth.search.setting import SearchSetting

    tasks = load_questions(questions)[:limit]
    session, notes = open_eval_session(
        model, tasks, index=index, dialect=dialect, prompt=prompt, engine=engine, served_as=served_as
    )
    if index is None and isinstance(session.setting, SearchSetting):
        raise SleuthError(f"{model} searches: name the index to search, --index DIR")
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    prepare_out_file(out)
    weights = load_model(model, dtype=None, device="auto")[0] if session.server is not None else session.weights
    PROCESS.announce()
    found = probe_session(session, tasks, weights=weights)
    contents = {"name": Path(model).name, "model": model, "questions": len(tasks), **found.as_json()}
    if session.server is not None:
        contents["engine"] = session.server.as_json()
    contents = with_digests(contents)
    if out is not None:
        write_eval(out, contents)
    if as_json:
        typer.echo(json.dumps({key: value for key, value in contents.items() if key != "records"}))
        return
    if not compares_answers(session.setting.dialect):
        _print_table("gain of a snippet to a claim, in nats", SNIPPET_COLUMNS, found.snippets)
        typer.echo("Ahead: share of claims to which a snippet that they cite was worth more than any other.")
        return
    _print_table(f"{len(tasks)} questions, exact match", ARM_COLUMNS, found.arms)
    _print_table("gain of a search, in nats", SEARCH_COLUMNS, found.searches)
    _print_table("gain of a passage, in nats", PASSAGE_COLUMNS, found.passages)
    typer.echo(
        "Ahead: share of the searches before right answers in which the gold passage was worth more than any other. "
        f"Idle: words found gained at most {MARGIN:g} nat. Intervals are of 95 %, clustered by question."
    )


def probe_thoughts(
    model: options.Model,
    recipe: options.RecipeFile,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use only so many places in texts. [default: as the recipe says]")
    ] = None,
    no_code: options.NoCode = False,
    out: options.Out = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure whether a model's thoughts make true text likelier.

    Its own thoughts are compared with none, empty phrases, those of other texts, those of other places, and a
    teacher's, as the recipe's first stage of kind = "probe" says. The certificate is written to thoughts.json in the
    model's folder.
    """
    from sleuth.think.stage_tables import ProbeRecipe

    resolved, stage = load_stage(recipe, ProbeRecipe)
    require_inputs([model])
    if limit is not None:
        stage = stage.model_copy(update={"data": stage.data.model_copy(update={"limit": limit})})
    prepare_out_file(out)

    import_heavy()
    from sleuth.evaluation.eval_session import load_named
    from sleuth.judges.factory import JudgePool
    from sleuth.runs.eval_file import with_digests, write_eval
    from sleuth.think.certificate import write_certificate
    from sleuth.think.thought_probe import probe_thoughts as probe_model
    from sleuth.think.thought_probe import require_spots

    thinker = load_named(model, resolved)
    require_spots(stage, thinker.tokenizer, thinker.max_positions)
    PROCESS.announce()
    with tempfile.TemporaryDirectory() as folder, JudgePool(Path(folder) / "verdicts.sqlite") as judge_pool:
        found = probe_model(stage, thinker, judge_pool, seed=resolved.seed)
    contents = with_digests({"name": Path(model).name, **found})
    certificate = write_certificate(model, contents)
    if out is not None:
        write_eval(out, contents)
    figures = {name: value for name, value in contents.items() if name != "records"}
    if as_json:
        typer.echo(json.dumps(figures))
    else:
        _print_thoughts(figures, certificate)


def _print_table(title: str, columns: Mapping[str, str], rows: Mapping[str, Mapping[str, Measured]]) -> None:
    """One line per row: each figure over its interval, and the number of questions of the first."""
    shown = [
        Column(heading=heading, cells=[table_cell(figures.get(key)) for figures in rows.values()])
        for key, heading in columns.items()
    ]
    counts = Column(heading="n", cells=[f"{next(iter(figures.values())).n:,}" for figures in rows.values()])
    typer.echo(title)
    print_columns(list(rows), [*shown, counts])


def _print_thoughts(figures: dict[str, Any], file: Path | None) -> None:
    """One line per arm: its gain, by how much the model's own thoughts beat it, and the share of suffixes equivalent to
    the true one; then the certificate, and its `file`."""
    measured = measured_in(figures)
    headings = {"gain": "gain", "over": "own over it", "right": "right", "right_over": "own over it"}
    by_arm = {arm: [measured.get(f"{name}_{arm}") for name in headings] for arm in THOUGHT_ARMS}
    counts = {arm: count for arm, named in by_arm.items() if (count := next((one.n for one in named if one), None))}
    columns = [
        Column(heading=heading, cells=[table_cell(by_arm[arm][at]) for arm in counts])
        for at, heading in enumerate(headings.values())
    ]
    columns.append(Column(heading="n", cells=[f"{count:,}" for count in counts.values()]))
    typer.echo(f"thoughts of {figures['model']}, in nats a token of the true suffix")
    print_columns(list(counts), columns, heading="arm")
    left = measured["blank_nll"].formatted()
    typer.echo(f"An empty thought leaves {left} to gain. Intervals are of 95 %, over documents.")
    needed = {name: count for name, count in figures["documents_needed"].items() if count}
    counts = ", ".join(f"{name} {count:,}" for name, count in needed.items())
    typer.echo(f"Documents that would show differences of this size, in four of five cases: {counts or 'not known'}.")
    certificate = figures["certificate"]
    typer.echo(f"{'PASS' if certificate['passes'] else 'No certificate'}: {certificate['claim']}.")
    if file is not None:
        typer.echo(f"{file}: the certificate")
