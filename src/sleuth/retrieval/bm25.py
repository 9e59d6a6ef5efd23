"""BM25 over a tantivy index on disk.

Words are lower-cased, stripped of accents and stemmed (English); a title is indexed twice in one field with its text.
Stop words are indexed, and left out of a query unless it holds nothing else ("To Be or Not to Be" finds the film).
On 3,561 real questions over 19,258 passages, used verbatim as queries, a gold passage is in the first three for 0.904;
0.893 with the title once, 0.872 without the stemmer either. Leaving stop words out of queries makes them three times
faster. Accents are neutral there; without them "Ramirez" finds "Ramírez".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import tantivy

from sleuth.retrieval.index_card import HOW_TO_MAKE, IndexCard, require_card
from sleuth.retrieval.writing import Progress, write_index
from sleuth.types import Passage, SleuthError

LAYOUT = 1  # increment whenever the fields or the analysis below change
K1, B = 1.2, 0.75  # fixed by tantivy
WRITER_BYTES = 128 * 2**20  # memory of the one writer thread before it spills to disk
MAX_WORD_BYTES = 255  # longer runs of letters and digits are not indexed
CACHED_QUERIES = 8192
SPARE_HITS = 8  # fetched beyond k, to detect ties at rank k
COMMIT_EVERY = 250_000  # passages that a kill can lose; each commit leaves a segment that is merged later


def build_index(corpus: Path, folder: Path, progress: Progress = lambda count: None) -> IndexCard:
    """Indexes a corpus into `folder`, calling `progress` with the number of passages so far. See `write_index`."""
    plan = {"kind": "bm25", "layout": LAYOUT, "library": _library()}
    return write_index(corpus, folder, plan, Bm25Writer, progress)


class Bm25:
    """A `Retriever` over an index of `build_index`. Memory-mapped; searches run inline, in the caller's thread.

    Queries are plain text without query syntax; each distinct word counts once. A query without words finds nothing.
    Equal scores are ordered by id, so that results do not depend on the order of the corpus.
    """

    batch = 1

    def __init__(self, folder: Path) -> None:
        """Opens `folder`. Raises SleuthError if it has no BM25 index of this layout."""
        self.card = require_card(folder, "bm25", LAYOUT)
        try:
            index = tantivy.Index.open(str(folder))
        except ValueError as error:
            raise SleuthError(f"{folder}: damaged index ({error}); {HOW_TO_MAKE.format(folder=folder)}") from error
        self._schema = index.schema
        self._searcher = index.searcher()
        self._all_words, self._content_words = _analyser(), _analyser(stop_words=False)
        self._cached_search = lru_cache(maxsize=CACHED_QUERIES)(self._search)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most k passages for each query, best first; ties broken by id."""
        return self.find(queries, k)

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """`search` for callers without an event loop; any number of threads may call it."""
        return [list(self._cached_search(query, k)) for query in queries]

    def passage(self, passage_id: str) -> Passage | None:
        """The passage with this id, with the score 0; None if there is none. Any number of threads may call it."""
        hits = self._searcher.search(tantivy.Query.term_query(self._schema, "id", passage_id, "basic"), limit=1).hits
        return self._passage(hits[0][1], 0.0) if hits else None

    def _search(self, query: str, k: int) -> tuple[Passage, ...]:
        text = query.encode(errors="replace").decode()  # tantivy rejects unpaired surrogates
        words = self._content_words.analyze(text) or self._all_words.analyze(text)
        if not words or k < 1:
            return ()
        hits = [self._passage(address, score) for score, address in self._hits(words, k)]
        return tuple(sorted(hits, key=lambda passage: (-passage.score, passage.id))[:k])

    def _hits(self, words: Sequence[str], k: int) -> list[tuple[float, tantivy.DocAddress]]:
        """The best k and all that tie with the k-th, as tantivy itself breaks ties by order of insertion."""
        terms = [tantivy.Query.term_query(self._schema, "words", word, "freq") for word in dict.fromkeys(words)]
        query = tantivy.Query.boolean_query([(tantivy.Occur.Should, term) for term in terms])
        k = min(k, self._searcher.num_docs)
        limit = k + SPARE_HITS
        while True:
            hits = self._searcher.search(query, limit=limit, count=False).hits
            if len(hits) < limit or hits[-1][0] < hits[k - 1][0]:
                return [hit for hit in hits if hit[0] >= hits[min(k, len(hits)) - 1][0]]
            limit *= 2

    def _passage(self, address: tantivy.DocAddress, score: float) -> Passage:
        stored = self._searcher.doc(address)
        title, text = (bytes(stored[field][0]).decode() for field in ("title", "text"))  # tantivy 0.24 returns lists
        return Passage(id=stored["id"][0], title=title, text=text, score=score)


class Bm25Writer:
    """Writes a BM25 index into a folder with one writer thread, in `WRITER_BYTES` of memory for any corpus."""

    every = COMMIT_EVERY

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        index = tantivy.Index(_schema(), str(folder))  # resumes from the last commit
        index.register_tokenizer("words", _analyser())
        self.done = index.searcher().num_docs
        self._writer = index.writer(heap_size=WRITER_BYTES, num_threads=1)

    def add(self, passages: list[Passage]) -> None:
        for passage in passages:
            self._writer.add_document(_document(passage))
        self.done += len(passages)

    def checkpoint(self) -> None:
        self._writer.commit()

    def finish(self, corpus_sha256: str) -> IndexCard:
        self._writer.commit()
        self._writer.wait_merging_threads()
        return IndexCard(
            kind="bm25",
            count=self.done,
            corpus_sha256=corpus_sha256,
            k1=K1,
            b=B,
            layout=LAYOUT,
            library=_library(),
        )


def _library() -> str:
    return f"tantivy {version('tantivy')}"


def _schema() -> tantivy.Schema:
    """`words` is indexed and not stored; the other fields are stored and not searched."""
    fields = tantivy.SchemaBuilder()
    fields.add_text_field("words", tokenizer_name="words", index_option="freq")
    fields.add_text_field("id", stored=True, tokenizer_name="raw", index_option="basic")
    fields.add_bytes_field("title", stored=True)
    fields.add_bytes_field("text", stored=True)
    return fields.build()


def _document(passage: Passage) -> tantivy.Document:
    words = f"{passage.title}\n{passage.title}\n{passage.text}"
    return tantivy.Document(id=passage.id, words=words, title=passage.title.encode(), text=passage.text.encode())


def _analyser(stop_words: bool = True) -> tantivy.TextAnalyzer:
    """The text analysis of passages and queries; with `stop_words` False, stop words are removed."""
    words = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    words = words.filter(tantivy.Filter.remove_long(MAX_WORD_BYTES + 1)).filter(tantivy.Filter.lowercase())
    if not stop_words:
        words = words.filter(tantivy.Filter.stopword("english"))
    return words.filter(tantivy.Filter.ascii_fold()).filter(tantivy.Filter.stemmer("english")).build()
