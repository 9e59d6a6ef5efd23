"""`sleuth probe`: whether a model uses what it retrieves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sleuth.host.threads import PROCESS
from sleuth.terminal import options
from sleuth.terminal.inputs import prepare_out_file, require_engine, require_inputs
from sleuth.terminal.tables import print_measured, show_measured
from sleuth.training.heavy import import_heavy
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.search.probe import ProbeResult

ARM_COLUMNS = {"em": "EM", "em_one_hop": "one hop", "em_two_hop": "two hops", "difference": "difference"}
SEARCH_COLUMNS = {"gain": "what followed", "found_gain": "words found", "answer_gain": "last turn", "idle": "idle"}
PASSAGE_COLUMNS = SEARCH_COLUMNS | {"ahead": "ahead"}
SNIPPET_COLUMNS = {"gain": "gain", "ahead": "ahead"}


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

    Four arms answer the same questions: the model as it is; with the answer opened at once; with a search engine that
    finds nothing; and with passages of other questions. Then each search of the first arm, and each passage, is removed
    in turn: its gain is how much likelier it made the text after it, in nats. Of a refiner, the gain of each snippet to
    the claims that cite it.
    """
    require_engine(engine, served_as, {})
    require_inputs([model], questions=questions, index=index)

    import_heavy()
    from sleuth.data.questions import load_questions
    from sleuth.evaluation.eval_session import open_eval_session
    from sleuth.learn.models import load_model
    from sleuth.runs.eval_file import with_digests
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
    show_measured(contents, out, as_json, lambda: _print_probe(found, len(tasks)))


def _print_probe(found: ProbeResult, questions: int) -> None:
    from sleuth.search.probe import MARGIN

    if found.snippets:
        print_measured("gain of a snippet to a claim, in nats", found.snippets, SNIPPET_COLUMNS)
        typer.echo("Ahead: share of claims to which a snippet that they cite was worth more than any other.")
        return
    print_measured(f"{questions} questions, exact match", found.arms, ARM_COLUMNS)
    print_measured("gain of a search, in nats", found.searches, SEARCH_COLUMNS)
    print_measured("gain of a passage, in nats", found.passages, PASSAGE_COLUMNS)
    typer.echo(
        "Ahead: share of the searches before right answers in which the gold passage was worth more than any other. "
        f"Idle: words found gained at most {MARGIN:g} nat. Intervals are of 95 %, clustered by question."
    )
