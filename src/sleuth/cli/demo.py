"""`sleuth demo`: trains a tiny model to search, or shows one that answers real questions, from files that ship with the
package."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from sleuth.cli.http_server import LOOPBACK, address_of, listen_here, run, server_of
from sleuth.host.threads import PROCESS
from sleuth.terminal.inputs import require_unset
from sleuth.terminal.options import Overrides, Quiet
from sleuth.terminal.tables import print_notes, show
from sleuth.training.heavy import import_heavy
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.evaluation.eval_session import EvalSession
    from sleuth.serve.agent import Agent
    from sleuth.serve.conversation import Event

RUN = Path("runs/demo")
MODEL = "models/tiny-real"
CORPUS, QUESTIONS = "corpus.jsonl.gz", "questions.jsonl"
"""Its passages, and questions to try, in the folder of the model."""
INDEX = Path("runs/real-index")
PORT = 8000
CONVERSATIONS, WAITING, SECONDS = 8, 64, 120.0
"""Conversations at once at most, those that may wait, and the longest time of one."""
COLUMNS, INDENT = 80, 10
"""Characters of a line in the terminal, and of the words at its left."""


def demo(
    folder: Annotated[Path | None, Option("--run", metavar="DIR", help=f"The run folder. [default: {RUN}]")] = None,
    overrides: Overrides = None,
    quiet: Quiet = False,
    real: Annotated[bool, Option("--real", help="Train nothing: ask the tiny model of real questions.")] = False,
    port: Annotated[
        int | None, Option(min=0, max=65535, help="With --real: of the page. [default: 8000, or the next free one]")
    ] = None,
    ask: Annotated[
        str | None, Option(metavar="QUESTION", help="With --real: answer this question here, without the page.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="With --ask: print one JSON object.")] = False,
) -> None:
    """Train a tiny model to search, in about five minutes.

    Two cores are enough, and no network is needed. Writes a generated world to runs/world, indexes it, trains the
    recipe that ships as recipes/demo.toml, and writes DIR/report.html. The same command continues after a stop.

    With --real it trains nothing: a page, on this machine alone, asks a model of 4.6 million weights that answers real
    questions from passages of Wikipedia, and cites one of them. Their index is written to runs/real-index.
    """
    if real:
        require_unset({"--run": folder, "--set": overrides or None}, "is for training, and --real trains nothing")
        if ask is None:
            require_unset({"--json": as_json or None}, "prints an answer; add --ask QUESTION")
            serve_page(port, quiet=quiet)
        else:
            require_unset({"--port": port}, "is for the page, and --ask answers here")
            answer_here(ask, as_json=as_json, quiet=quiet)
        return
    require_unset({"--port": port, "--ask": ask, "--json": as_json or None}, "is for the real questions; add --real")
    _train(RUN if folder is None else folder, overrides, quiet)


def _train(run: Path, overrides: list[str] | None, quiet: bool) -> None:
    from sleuth.recipe import load_recipe
    from sleuth.recipe.shipped import WORLD, shipped

    load_recipe(shipped("recipes/demo.toml"), overrides or ())  # a wrong --set ends it here

    from sleuth.cli.train import train
    from sleuth.report import write_report
    from sleuth.retrieval.bm25 import build_index
    from sleuth.runs.checkpoints import latest_checkpoint
    from sleuth.runs.progress import progress_bar, row_counter
    from sleuth.runs.progress import quiet as silence
    from sleuth.world.write_world import CORPUS, write_world

    with silence(quiet):
        with progress_bar("world") as progress:
            write_world(WORLD, seed=0, people=2000, progress=progress)
        build_index(WORLD / CORPUS, WORLD / "index", row_counter("index"))
        train(shipped("recipes/demo.toml"), overrides, run)
    page, last = write_report(run), latest_checkpoint(run / "checkpoints")
    typer.echo(f"\nThe report:    {page}")
    typer.echo(f"Talk to it:    sleuth serve {quote(str(last))} --index {WORLD / 'index'}")
    typer.echo(
        f"Ask it more:   sleuth eval {quote(str(last))} --questions {WORLD / 'qa_test.jsonl'} --index {WORLD / 'index'}"
    )
    typer.echo(f'Look it up:    sleuth search {WORLD / "index"} "Who founded ..."')


def serve_page(port: int | None, *, quiet: bool = False) -> None:
    """Serves the page on this machine alone until the process is stopped. Raises SleuthError if a file is missing or
    damaged, or the port cannot be used."""
    folder = find_real_model()
    listening = listen_here(port, PORT)
    session = _open_session(folder, quiet)

    from sleuth.data.questions import load_questions
    from sleuth.serve.access import Access, conversation_limits, known_names
    from sleuth.serve.agent import agent_of, example_questions
    from sleuth.serve.chat_app import chat_app

    tasks = load_questions(folder / QUESTIONS) if (folder / QUESTIONS).is_file() else []
    agent = agent_of(session, folder.name, INDEX, example_questions(str(folder), session.setting.dialect, tasks))
    limits = conversation_limits(seconds=SECONDS, waiting=WAITING)
    app = chat_app(agent, limits, conversations=CONVERSATIONS, access=Access(hosts=known_names(LOOPBACK)))
    millions = session.weights.num_parameters() / 1e6
    typer.echo(f"{agent.name}: {millions:.1f} million weights, {agent.facts['passages']:,} passages to search")
    typer.echo(f"Open {address_of(LOOPBACK, listening)}/ and ask, for example:")
    for question in agent.facts["examples"]:
        typer.echo(textwrap.fill(question, COLUMNS, initial_indent="  ", subsequent_indent="    "))
    typer.echo("It is tiny and often wrong: a click on what it cites shows the sentence.\nStop it with Ctrl-C.")
    PROCESS.announce()
    run(server_of(app), listening)


def answer_here(question: str, *, as_json: bool = False, quiet: bool = False) -> None:
    """Prints the query, the titles found, the answer and the sentence that it cites. Raises SleuthError if a file is
    missing or damaged, or the question does not fit the model."""
    if not question.strip():
        raise SleuthError("--ask: the question is empty")
    session = _open_session(find_real_model(), quiet)

    from sleuth.serve.agent import agent_of

    events = _conversation(agent_of(session, MODEL, INDEX), question.strip())
    show(as_json, answer_json(question.strip(), events), *answer_lines(events))


def find_real_model() -> Path:
    """The folder of the model, here or among those that ship, with its passages. Raises SleuthError if it is not there
    or was trained under another protocol."""
    from sleuth.episodes.protocol import ProtocolCard
    from sleuth.recipe.shipped import find_model

    folder = Path(find_model(MODEL))
    if not (folder / "config.json").is_file():
        raise SleuthError(
            f"{MODEL}: this version of Sleuth does not ship it, and there is none here; in a checkout, "
            "`make real DATA=FOLDER` trains one and tools/ship_real.py writes it there"
        )
    card = ProtocolCard.read(folder)
    if card is None or not card.dialect.cites:
        fault = f"its answers, in the dialect {card.dialect.name!r}, quote nothing" if card else "has no protocol.json"
        raise SleuthError(f"{folder}: {fault}; this demo needs a model that recipes/tiny/real.toml trains as it is now")
    if not (folder / CORPUS).is_file():
        raise SleuthError(f"{folder / CORPUS}: no such file; the passages of the demo belong beside its model")
    return folder


def index_passages(corpus: Path, *, quiet: bool = False) -> None:
    """Builds the BM25 index of `corpus` in `INDEX`, unless a whole one is there. Raises SleuthError where the corpus
    cannot be read, or where something else is in `INDEX`."""
    from sleuth.retrieval.bm25 import LAYOUT, build_index
    from sleuth.retrieval.corpus import corpus_hash, read_corpus
    from sleuth.retrieval.index_card import index_damage, read_card
    from sleuth.runs.progress import progress_bar
    from sleuth.runs.progress import quiet as silence

    passages = list(read_corpus(corpus))
    with suppress(SleuthError):  # of a card that cannot be read; an index of whatever version is built again
        card = read_card(INDEX)
        of_this = (card.kind, card.layout, card.corpus_sha256) == ("bm25", LAYOUT, corpus_hash(passages))
        if of_this and index_damage(INDEX, card) is None:
            return
    with silence(quiet), progress_bar("index") as progress:
        build_index(corpus, INDEX, lambda done: progress(done, len(passages)))


def _open_session(folder: Path, quiet: bool) -> EvalSession:
    """The model over the index of its passages, which are only a part of those that it was trained with."""
    index_passages(folder / CORPUS, quiet=quiet)
    import_heavy()

    from sleuth.evaluation.eval_session import open_eval_session

    session, notes = open_eval_session(str(folder), [], index=INDEX, slots=CONVERSATIONS)
    print_notes(note for note in notes if "corpus" not in note)
    return session


def _conversation(agent: Agent, question: str) -> list[Event]:
    from sleuth.serve.conversation import conversation
    from sleuth.serve.refused import Refused

    async def collect() -> list[Event]:
        events = conversation(agent, question, field="--ask", temperature=0.0, key=(0,))
        return [event async for event in events]

    try:
        return asyncio.run(collect())
    except Refused as error:
        raise SleuthError(f"--ask: {error}") from None


def answer_json(question: str, events: Sequence[Event]) -> dict[str, object]:
    """`question`, `answer` (null if there is none), and `stop`, `searches` and `citations` as in the chat API."""
    from sleuth.serve.answers import answer_details, require_end
    from sleuth.serve.conversation import Answered, Searched

    answers = [event.text for event in events if isinstance(event, Answered)]
    searches = [event for event in events if isinstance(event, Searched)]
    details = answer_details(require_end(events[-1]), searches)
    return {"question": question, "answer": answers[-1] if answers else None, **details}


def answer_lines(events: Sequence[Event]) -> list[str]:
    """The conversation as lines of at most 80 characters."""
    from sleuth.serve.answers import require_end
    from sleuth.serve.conversation import Answered, Searched

    lines = []
    searches = [event for event in events if isinstance(event, Searched)]
    for search in searches:
        lines += _labelled("Searched", search.query)
        for rank, passage in enumerate(search.passages, start=1):
            lines += _labelled("", f"[{rank}] {passage.title or passage.id}")
    answers = [event.text for event in events if isinstance(event, Answered)]
    if not answers:
        return [*lines, *_labelled("Answer", "none: it ended without one")]
    lines += _labelled("Answer", answers[-1])
    shown = [passage for search in searches for passage in search.passages]
    for citation in (citations := require_end(events[-1]).citations):
        passage = citation.passage
        lines += _labelled("Cited", f"[{shown.index(passage) + 1}] {passage.title or passage.id}")
        sentence = "no sentence of it has these words"
        if citation.sentence is not None:
            sentence = passage.text[slice(*citation.sentence)]
        lines += _labelled("", sentence)
    return lines if citations else [*lines, *_labelled("Cited", "no passage")]


def _labelled(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), COLUMNS, initial_indent=label.ljust(INDENT), subsequent_indent=" " * INDENT
    ) or [label]
