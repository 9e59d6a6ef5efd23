"""`sleuth ask`: answers from a folder of documents, each with its sentence, file and page, and how sure it is; and what
`sleuth demo --real` shares with it."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from sleuth.cli.app import WRONG_INPUT
from sleuth.cli.http_server import LOOPBACK, address_of, listen_here, run, server_of
from sleuth.host.escapes import replace_surrogates
from sleuth.host.threads import PROCESS
from sleuth.terminal import options
from sleuth.terminal.inputs import read_folder, require_engine, require_inputs, require_unset
from sleuth.terminal.tables import print_notes, show
from sleuth.training.heavy import import_heavy
from sleuth.types import Passage, SleuthError

if TYPE_CHECKING:
    from socket import socket

    from sleuth.serve.agent import Agent
    from sleuth.serve.conversation import Event

READER = "models/tiny-real"
"""The model that ships and quotes."""
UNTAUGHT: dict[str, Any] = {"dialect": "search_r1", "prompt": "search_rules", "prompt_role": "user"}
"""How a model without a protocol is asked: the passage that holds its answer is cited."""
PORT = 8000
CONVERSATIONS, WAITING, SECONDS = 8, 64, 120.0
"""Conversations at once at most, those that may wait, and the longest time of one."""
COLUMNS, INDENT = 80, 10
"""Characters of a line in the terminal, and of the words at its left."""
ENGLISH, READ_FIRST = frozenset({"the", "of", "and"}), 1_000
"""Words that English texts have, and the passages that are looked at."""
LONGEST = 100_000
"""Characters of a line of stdin that are read as one question."""


def ask(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="A folder of documents.", show_default=False)],
    question: Annotated[
        str | None,
        Argument(metavar="[QUESTION]", help="Without one: a prompt, or stdin, a question a line.", show_default=False),
    ] = None,
    page: Annotated[bool, Option("--page", help="A page on this machine alone, with the documents listed.")] = False,
    port: Annotated[
        int | None, Option(min=0, max=65535, help="With --page. [default: 8000, or the next free one]")
    ] = None,
    model: Annotated[
        str | None,
        Option(
            metavar="MODEL",
            help="A checkpoint, a model folder or a hub id. [default: the one trained on FOLDER, or a tiny one]",
        ),
    ] = None,
    engine: options.Engine = None,
    served_as: options.ServedAs = None,
    home: Annotated[
        Path | None, Option("--run", metavar="DIR", help="Where its index is kept. [default: runs/NAME of FOLDER]")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object a question.")] = False,
    quiet: Annotated[bool, Option("--quiet", help="Print only answers.")] = False,
) -> None:
    """Ask a folder of documents.

    Indexes what is new in FOLDER, and answers with the sentence, its file and page, and how sure the answer is; or says
    that it found nothing. A tiny model that ships reads, on this machine; --model and --engine name a larger one.
    """
    from sleuth.recipe.shipped import INDEX, find_model, home_of

    require_unset({"--page": (page and question is not None) or None}, "takes its questions there; leave QUESTION out")
    require_unset({"--json": (page and as_json) or None}, "prints answers, and --page shows them; leave one out")
    require_unset({"--port": None if page else port}, "is of the page; add --page")
    if question is not None and not question.strip():
        raise SleuthError('the question is empty; sleuth ask FOLDER "Who ...?"')
    require_engine(engine, served_as, {})
    if question is None and " " in str(folder) and not folder.exists():
        raise SleuthError(f"{folder}: no such folder; the folder comes first: sleuth ask FOLDER {quote(str(folder))}")
    home = home or home_of(folder)
    name = find_reader(home) if model is None else find_model(model)
    require_inputs([name])
    questions = typed() if question is None else iter([question])
    if question is None and not page and not (sys.stdin and sys.stdin.isatty()):  # before the documents are read
        if (first := next(filter(str.strip, questions), None)) is None:
            raise SleuthError('no question: sleuth ask FOLDER "Who ...?", or lines on stdin')
        questions = chain([first], questions)
    listening = listen_here(port, PORT) if page else None
    documents = read_folder(folder, home, quiet=quiet).documents
    note_of_language(home, name)
    named = [name for name, document in documents.items() if document.passages]
    with open_agent(name, home / INDEX, {"documents": named}, engine=engine, served_as=served_as) as agent:
        if listening is not None:
            serve_page(agent, listening)
        else:
            answer_all(agent, questions, as_json=as_json, name="question")


def note_of_language(home: Path, model: str) -> None:
    """Notes if the reader that ships can hardly read the documents: few passages have a common English word."""
    from sleuth.retrieval.corpus import BEIR_CORPUS

    if Path(model).name != Path(READER).name:
        return
    with (home / BEIR_CORPUS).open(encoding="utf-8") as lines:
        foreign = [ENGLISH.isdisjoint(line.lower().split()) for line in islice(lines, READ_FIRST)]
    if 2 * sum(foreign) > len(foreign):
        print_notes(["few of these texts look English, and the tiny reader that ships reads nothing else"])


def find_reader(home: Path) -> str:
    """The model that was trained on the documents of a home, unless its certificate says that it is no better, else the
    one that ships."""
    from sleuth.host.model_path import read_object
    from sleuth.recipe.shipped import CERTIFICATE, TRAINING, find_model
    from sleuth.runs.checkpoints import latest_checkpoint

    trained, certificate = latest_checkpoint(home / TRAINING / "checkpoints"), home / CERTIFICATE
    if trained is not None and certificate.is_file() and not read_object(certificate).get("passes"):
        print_notes([f"{trained} is not asked, as {certificate} does not pass it; --model {trained} asks it"])
        trained = None
    return str(trained or find_model(READER))


@contextmanager
def open_agent(
    model: str,
    index: Path,
    facts: Mapping[str, Any],
    *,
    examples: Sequence[str] = (),
    engine: str | None = None,
    served_as: str | None = None,
) -> Iterator[Agent]:
    """A model that searches an index, as it was trained, and knows how sure it is if its folder says so. What the page
    shows of it has the `facts` too. In this context nothing is compiled, so that the first answer comes sooner."""
    import_heavy()

    from sleuth.episodes.protocol import ProtocolCard
    from sleuth.evaluation.certainty import FILE, Certainty
    from sleuth.evaluation.eval_session import open_eval_session
    from sleuth.kernels.compiled import without_loops
    from sleuth.serve.agent import agent_of

    taught = Path(model).is_dir() and ProtocolCard.read(Path(model)) is not None
    asked = {} if taught else UNTAUGHT
    session, notes = open_eval_session(
        model, [], index=index, slots=CONVERSATIONS, engine=engine, served_as=served_as, **asked
    )
    certainty = Certainty.read(Path(model))
    unsure = f"{model} has no {FILE}: it does not say how sure an answer is, and withholds none"
    notes = [note for note in notes if "corpus" not in note]  # which is never the one that it was trained with
    print_notes([*notes, unsure] if certainty is None else notes)
    with without_loops():
        yield agent_of(session, Path(model).name, index, examples, facts, certainty)


def serve_page(agent: Agent, listening: socket) -> None:
    """Serves the page of an agent on this machine alone until the process is stopped."""
    from sleuth.serve.access import Access, conversation_limits, known_names
    from sleuth.serve.chat_app import chat_app

    limits = conversation_limits(seconds=SECONDS, waiting=WAITING)
    app = chat_app(agent, limits, conversations=CONVERSATIONS, access=Access(hosts=known_names(LOOPBACK)))
    typer.echo(f"{agent.name} searches {agent.facts['passages']:,} passages")
    examples = agent.facts["examples"]
    typer.echo(f"Open {address_of(LOOPBACK, listening)}/ and ask{', for example:' if examples else '.'}")
    for question in examples:
        typer.echo(textwrap.fill(question, COLUMNS, initial_indent="  ", subsequent_indent="    "))
    if topics := agent.facts.get("topics"):
        typer.echo(textwrap.fill(f"Most passages are about {', '.join(topics)}.", COLUMNS))
    typer.echo("A click on what an answer cites shows the sentence. Stop it with Ctrl-C.")
    PROCESS.announce()
    run(server_of(app), listening)


def typed() -> Iterator[str]:
    """Questions typed at a prompt or, if stdin is no terminal, one in each of its lines."""
    if not (sys.stdin and sys.stdin.isatty()):  # None if it is closed
        yield from iter(lambda: sys.stdin.readline(LONGEST), "") if sys.stdin else ()
        return
    import readline  # noqa: F401  # for arrow keys and earlier questions

    typer.echo("Ask, or leave with Ctrl-D.", err=True)
    while True:
        try:
            line = input("\n? ")
        except EOFError:
            typer.echo(err=True)
            return
        yield line


def answer_all(agent: Agent, questions: Iterable[str], *, as_json: bool, name: str) -> None:
    """Prints the answer to each question. A question that cannot be asked is a line on stderr, and the exit status is
    2 at the end; it is called `name` there."""
    refused = 0
    with asyncio.Runner() as runner:  # one, for what the agent's connections belong to
        for question in filter(None, (replace_surrogates(question).strip() for question in questions)):
            try:
                events = runner.run(_events(agent, question, name))
                show(as_json, answer_json(question, events), *answer_lines(events))
            except SleuthError as error:
                refused += 1
                typer.echo(f"error: {error}", err=True)
    if refused:
        raise typer.Exit(WRONG_INPUT)


async def _events(agent: Agent, question: str, name: str) -> list[Event]:
    from sleuth.serve.conversation import conversation
    from sleuth.serve.refused import Refused

    if len(question) > agent.max_characters:
        raise SleuthError(f"{name}: it is longer than the context of {agent.context:,} tokens")
    try:
        return [event async for event in conversation(agent, question, field=name, temperature=0.0, key=(0,))]
    except Refused as error:
        raise SleuthError(f"{name}: {error}") from None


def answer_json(question: str, events: Sequence[Event]) -> dict[str, object]:
    """`question`, `answer` (null if there is none), and `stop`, `searches` and `citations` as in the chat API, the
    citations with the `file`, `page` and `text` of the sentence."""
    from sleuth.retrieval.folder import place_of
    from sleuth.serve.answers import answer_details, require_end
    from sleuth.serve.conversation import Answered, Searched

    answers = [event.text for event in events if isinstance(event, Answered)]
    end = require_end(events[-1])
    details = answer_details(end, [event for event in events if isinstance(event, Searched)])
    for cited, citation in zip(details["citations"], end.citations, strict=True):
        file, page = place_of(citation.passage.id) or (None, None)
        cited |= {"file": file, "page": page}
    answer = answers[-1] if answers and end.withheld is None else None
    return {"question": question, "answer": answer, **details}


def answer_lines(events: Sequence[Event]) -> list[str]:
    """The conversation as lines of at most 80 characters."""
    from sleuth.serve.answers import require_end
    from sleuth.serve.conversation import Answered, Searched

    end = require_end(events[-1])
    answers = [event.text for event in events if isinstance(event, Answered)]
    lines = _labelled("Answer", answers[-1] if answers else "none: it ended without one")
    for citation in end.citations:
        lines += _labelled("From", name_of(citation.passage))
        lines += _labelled("", citation.text or "no sentence of it has these words")
    if answers and end.withheld is None and not end.citations:
        lines += _labelled("From", "no passage")
    if end.certainty is not None and end.withheld is None:
        lines += _labelled("Sure", f"{end.certainty.formatted('.2f')} of such answers are right")
    for search in (event for event in events if isinstance(event, Searched)):
        names = dict.fromkeys(map(name_of, search.passages))
        lines += _labelled("Searched", f"{search.query}: {'; '.join(names) or 'nothing found'}")
    return lines


def name_of(passage: Passage) -> str:
    """`lakes/tarn.pdf, page 12` of a document, or the title of another passage."""
    from sleuth.retrieval.folder import place_of

    if (place := place_of(passage.id)) is None:
        return passage.title or passage.id
    return f"{place[0]}, page {place[1]}" if place[1] else place[0]


def _labelled(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), COLUMNS, initial_indent=label.ljust(INDENT), subsequent_indent=" " * INDENT
    ) or [label]
