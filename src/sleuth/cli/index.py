"""`sleuth index` and `sleuth search`: builds an index of a corpus, and searches it by hand or measures its recall."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from sleuth.terminal.inputs import read_folder, require_unset
from sleuth.terminal.options import AsJson
from sleuth.terminal.tables import print_figures, show
from sleuth.types import Passage, SleuthError, Task

if TYPE_CHECKING:
    from sleuth.evaluation.intervals import Measured
    from sleuth.retrieval.index_card import IndexCard
    from sleuth.retrieval.open_index import Index
    from sleuth.retrieval.writing import Progress

FEW_PASSAGES = 50_000
"""Below that vectors stay exact by default: they take little memory, and quantised ones are not searched faster."""


def index(
    corpus: Annotated[
        Path,
        Argument(
            metavar="CORPUS",
            help="Passages (.jsonl, .jsonl.gz, .parquet, .csv, .tsv, .json), BEIR's folder, a folder of texts (.txt, "
            ".md, .html, .pdf, .docx, .pptx), or hf://OWNER/NAME/FILE.",
        ),
    ],
    folder: Annotated[Path, Argument(metavar="DIR", help="The index; an existing one is replaced.")],
    kind: Annotated[
        Literal["bm25", "dense", "hybrid"] | None,
        Option(help="Words (bm25), vectors (dense), or both. [default: bm25]"),
    ] = None,
    encoder: Annotated[
        str | None, Option(metavar="MODEL", help="dense, hybrid: a sentence encoder's folder or hub id.")
    ] = None,
    query_prefix: Annotated[str | None, Option(help="Text before each query. [default: the encoder's own]")] = None,
    passage_prefix: Annotated[str | None, Option(help="Text before each passage. [default: the encoder's own]")] = None,
    pooling: Annotated[
        Literal["mean", "cls", "max", "lasttoken"] | None,
        Option(help="How token vectors are pooled. [default: the encoder's own]"),
    ] = None,
    vectors: Annotated[
        Literal["flat", "ivf-sq8", "ivf-pq"] | None,
        Option(
            help="dense, hybrid: exact with 4 bytes per number, or approximate with 1 or a quarter. "
            f"[default: ivf-sq8; flat below {FEW_PASSAGES:,} passages]"
        ),
    ] = None,
    faiss: Annotated[
        Path | None, Option(metavar="FILE", help="dense: use this faiss index of CORPUS instead of encoding it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    r"""Build a search index of a corpus.

    Rows are {"id": "17", "contents": "\"Title\"\ntext"}, or {"_id": "17", "title": "Title", "text": "text"} as BEIR has
    them. The corpus is streamed, whatever its size. After a kill, the same command continues. A corpus on the hub is
    downloaded into DIR.corpus first, and texts are split into passages there. Of a folder, files that did not change
    are not read again.
    """
    from sleuth.runs.progress import progress_bar

    encoding = {"--encoder": encoder, "--query-prefix": query_prefix, "--passage-prefix": passage_prefix}
    encoding |= {"--pooling": pooling, "--vectors": vectors, "--faiss": faiss}
    kind = kind or "bm25"
    if kind == "bm25":
        require_unset(encoding, "is for vectors, and a bm25 index has none; add --kind dense")
    elif kind == "hybrid":
        require_unset({"--faiss": faiss}, "is for --kind dense; leave it out to encode the corpus for a hybrid index")
    elif faiss is not None:
        require_unset({"--vectors": vectors}, "is for encoding a corpus, and --faiss opens vectors that exist")
    if kind != "bm25" and encoder is None:
        raise SleuthError(f"--kind {kind}: name the encoder too: --encoder MODEL, a folder or a hub id")

    from sleuth.retrieval.corpus import corpus_file

    corpus = corpus_file(corpus)
    if kind != "bm25":  # before the encoder is loaded
        from sleuth.terminal.recipe_inputs import require_file

        for file in (corpus, faiss):
            if file is not None and not file.is_dir():
                require_file(file)
    corpus = _local_corpus(corpus, folder)

    def build(progress: Progress, total: int) -> IndexCard:
        if kind == "bm25":
            from sleuth.retrieval.bm25 import build_index

            return build_index(corpus, folder, progress)
        from sleuth.retrieval.dense import adopt_vectors, build_dense
        from sleuth.retrieval.encoder import encoder_card
        from sleuth.retrieval.hybrid import build_hybrid

        card = encoder_card(str(encoder), query_prefix=query_prefix, passage_prefix=passage_prefix, pooling=pooling)
        if faiss is not None:
            return adopt_vectors(corpus, folder, card, faiss, progress)
        storage = vectors or ("flat" if total < FEW_PASSAGES else "ivf-sq8")
        return (build_dense if kind == "dense" else build_hybrid)(corpus, folder, card, storage, progress)

    with progress_bar("index") as progress:
        total = _count_rows(corpus)
        card = build(lambda done: progress(done, max(done, total)), total)
    _show_card(folder, card, as_json)


def _show_card(folder: Path, card: IndexCard, as_json: bool) -> None:
    lines = [f"{folder}: {card.count:,} passages, {card.kind}"]
    if card.encoder is not None:
        shown = f"queries begin with {card.encoder.query_prefix!r}, passages with {card.encoder.passage_prefix!r}"
        lines.append(f"encoder {card.encoder.model}: {card.encoder.width} numbers; {shown}")
    if card.flat_recall is not None:
        value, low, high = (card.flat_recall[name] for name in ("value", "low", "high"))
        lines.append(f"vectors {card.storage}: {value:.3f} ({low:.3f} to {high:.3f}) of the exact 10 nearest are found")
    following = f'Next: sleuth search {quote(str(folder))} "some words"'
    show(as_json, {"folder": str(folder), **card.as_json()}, *lines, following)


def _local_corpus(corpus: Path, folder: Path) -> Path:
    """The corpus as a file of rows on this machine. One of the hub, and one made of texts, is kept beside the index,
    because a build that continues and an index made from faiss vectors read its passages there."""
    from sleuth.data.hub import HubLocation, download_from_hub
    from sleuth.data.pages import is_of_pages
    from sleuth.data.rows import FORMATS
    from sleuth.retrieval.corpus import BEIR_CORPUS, write_corpus
    from sleuth.runs.progress import progress_bar

    place, beside = HubLocation.read(corpus), folder.with_name(f"{folder.name}.corpus")
    if corpus.is_dir():
        read_folder(corpus, beside, indexed=False)
        return beside / BEIR_CORPUS
    if place is None and is_of_pages(corpus):
        with progress_bar("texts") as progress:
            write_corpus(corpus, beside / BEIR_CORPUS, progress=lambda done: progress(done, done))
        return beside / BEIR_CORPUS
    if place is None:
        return corpus
    if place.path and not place.path.endswith(FORMATS):
        raise SleuthError(f"{place}: unknown format; the name should end in {', '.join(FORMATS)}")
    return download_from_hub(place, beside, progress_bar)


def _count_rows(corpus: Path) -> int:
    """The lines of a corpus; 0 if it cannot be read. Raises SleuthError if it unpacks into more than is read."""
    from sleuth.data.rows import DAMAGED, count_rows

    try:
        return count_rows(corpus) if corpus.is_file() else 0
    except (OSError, *DAMAGED):  # the build reports what is wrong
        return 0


def search(
    folder: Annotated[Path, Argument(metavar="DIR", help="An index.")],
    query: Annotated[str | None, Argument(metavar="QUERY", help="The query, in quotes.")] = None,
    k: Annotated[int, Option("-k", metavar="N", min=1, help="How many passages.")] = 3,
    questions: Annotated[
        Path | None,
        Option(metavar="FILE", help="Measure recall with these questions instead."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Search an index, or measure its recall.

    With --questions FILE: how often a gold passage is among the first N results for the question.
    """
    if (query is None) == (questions is None):
        raise SleuthError(
            f'give a query or --questions, one of the two: sleuth search {quote(str(folder))} "some words"'
        )
    if questions is not None:
        from sleuth.terminal.recipe_inputs import require_file

        require_file(questions)

    from sleuth.retrieval.open_index import open_index

    index = open_index(folder)
    if query is not None:
        [passages] = asyncio.run(index.search([query], k))
        lines = [f"[{rank}] {_passage_line(one)}" for rank, one in enumerate(passages, start=1)] or ["nothing found"]
        show(as_json, {"query": query, "passages": [asdict(passage) for passage in passages]}, *lines)
    elif questions is not None:
        _measure_recall(index, questions, k, as_json)


def _passage_line(passage: Passage) -> str:
    return f"{passage.title}  (id {passage.id}, score {passage.score:.2f})\n    {passage.text}"


def _measure_recall(index: Index, questions: Path, k: int, as_json: bool) -> None:
    from sleuth.data.questions import load_questions
    from sleuth.runs.progress import progress_bar

    tasks = [task for task in load_questions(questions) if task.gold_passages]
    if not tasks:
        raise SleuthError(f"{questions}: no question names its `gold_ids`, so recall cannot be measured")
    with progress_bar("search") as progress:
        found = asyncio.run(_search_each(index, tasks, k, lambda done: progress(done, len(tasks))))
    recall = _recall_by_kind(tasks, found)
    if as_json:
        show(as_json, {"k": k, "recall": {name: measured.as_json() for name, measured in recall.items()}})
    else:
        print_figures(f"recall@{k}", recall)


async def _search_each(
    index: Index, tasks: Sequence[Task], k: int, progress: Callable[[int], None]
) -> list[list[Passage]]:
    """The passages of each question; one that is repeated is searched once."""
    known: dict[str, list[Passage]] = {}
    for number, task in enumerate(tasks, start=1):
        if task.question not in known:
            [known[task.question]] = await index.search([task.question], k)
            progress(number)
            await asyncio.sleep(0)  # an index that answers inline would never let Ctrl-C through
    return [known[task.question] for task in tasks]


def _recall_by_kind(tasks: Sequence[Task], found: Sequence[Sequence[Passage]]) -> dict[str, Measured]:
    """Recall of all questions, then of each kind if there are several."""
    from sleuth.search.figures import recall

    pairs = list(zip(tasks, found, strict=True))
    kinds = sorted({task.kind for task in tasks})
    groups = {"all": pairs}
    if len(kinds) > 1:
        groups |= {kind or "other": [pair for pair in pairs if pair[0].kind == kind] for kind in kinds}
    return {name: recall(group) for name, group in groups.items()}
