"""`sleuth demo`: trains a tiny model to search, or shows one that answers real questions, from files that ship with the
package."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from typer import Option

from sleuth.cli.ask import PORT, READER, answer_all, open_agent, serve_page
from sleuth.cli.http_server import listen_here
from sleuth.terminal.inputs import require_unset
from sleuth.terminal.options import Overrides, Quiet
from sleuth.types import Passage, SleuthError

RUN = Path("runs/demo")
CORPUS, QUESTIONS = "corpus.jsonl.gz", "questions.jsonl"
"""Its passages, and questions to try, in the folder of the model."""
INDEX = Path("runs/real-index")
TOPICS = 40
"""How many titles, those of most passages, are listed."""


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
        require_unset({"--json": (as_json and ask is None) or None}, "prints an answer; add --ask QUESTION")
        require_unset({"--port": None if ask is None else port}, "is for the page, and --ask answers here")
        _ask_real(port, ask, as_json=as_json, quiet=quiet)
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


def _ask_real(port: int | None, question: str | None, *, as_json: bool, quiet: bool) -> None:
    """Answers the question here or, without one, serves the page."""
    if question is not None and not question.strip():
        raise SleuthError("--ask: the question is empty")
    from sleuth.data.rows import read_rows

    folder = find_real_model()
    listening = listen_here(port, PORT) if question is None else None
    passages = index_passages(folder / CORPUS, quiet=quiet)
    titles = Counter(passage.title for passage in passages).most_common(TOPICS)
    examples = [row["question"] for _, row in read_rows(file)] if (file := folder / QUESTIONS).is_file() else []
    facts = {"topics": sorted(title for title, _ in titles)}
    with open_agent(str(folder), INDEX, facts, examples=examples) as agent:
        if listening is not None:
            serve_page(agent, listening)
        elif question is not None:
            answer_all(agent, [question], as_json=as_json, name="--ask")


def find_real_model() -> Path:
    """The folder of the model, here or among those that ship, with its passages. Raises SleuthError if it is not there
    or was trained under another protocol."""
    from sleuth.episodes.protocol import ProtocolCard
    from sleuth.recipe.shipped import find_model

    folder = Path(find_model(READER))
    if not (folder / "config.json").is_file():
        raise SleuthError(
            f"{READER}: this version of Sleuth does not ship it, and there is none here; in a checkout, "
            "`make real DATA=FOLDER` trains one and tools/ship_real.py writes it there"
        )
    card = ProtocolCard.read(folder)
    if card is None or not card.dialect.cites:
        fault = f"its answers, in the dialect {card.dialect.name!r}, quote nothing" if card else "has no protocol.json"
        raise SleuthError(f"{folder}: {fault}; this demo needs a model that recipes/tiny/real.toml trains as it is now")
    if not (folder / CORPUS).is_file():
        raise SleuthError(f"{folder / CORPUS}: no such file; the passages of the demo belong beside its model")
    return folder


def index_passages(corpus: Path, *, quiet: bool = False) -> list[Passage]:
    """Builds the BM25 index of `corpus` in `INDEX`, unless a whole one is there; the passages. Raises SleuthError where
    the corpus cannot be read, or where something else is in `INDEX`."""
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
            return passages
    with silence(quiet), progress_bar("index") as progress:
        build_index(corpus, INDEX, lambda done: progress(done, len(passages)))
    return passages
