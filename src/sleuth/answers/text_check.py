"""A check of text data that reports all problems, not only the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sleuth.answers.data_check import MAX_EXAMPLES, Findings, findings
from sleuth.data.documents import PARTS, documents_and_faults, part_of, text_digest
from sleuth.types import Document, SleuthError


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReport:
    """The findings in `rows` texts.

    `malformed` rows make no document. `repeated_ids` are rows with the id of an earlier row: a run refuses such a file.
    `repeated_texts` equal an earlier text up to white space; a run skips them. `overlap` are texts that the other data
    has too; None without other data. `altered` are texts whose copy with thoughts differs from the text, so that a run
    ignores these thoughts. `parts` counts documents by the purpose of their origin, `sources` by source, `cut` those
    that mark where their ending begins; `thoughts` is the total number of thoughts.
    """

    rows: int
    malformed: Findings
    repeated_ids: Findings
    repeated_texts: Findings
    overlap: Findings | None
    altered: Findings
    characters: int
    parts: dict[str, int]
    sources: dict[str, int]
    cut: int
    thoughts: int

    @property
    def refused(self) -> int:
        """The number of rows for which a run would refuse the data."""
        return self.malformed.count + self.repeated_ids.count


def check_text(
    data: Path, against: Path | None = None, progress: Callable[[int], None] = lambda done: None
) -> TextReport:
    """The findings in text data; `progress` gets the number of rows read."""
    documents: list[tuple[str, Document]] = []
    malformed: list[str] = []
    for done, (where, document) in enumerate(documents_and_faults(data), start=1):
        progress(done)
        if isinstance(document, SleuthError):
            malformed.append(str(document) if len(malformed) < MAX_EXAMPLES else "")
        else:
            documents.append((where, document))
    parts = Counter(part_of(document.origin) for _, document in documents)
    return TextReport(
        rows=len(documents) + len(malformed),
        malformed=findings(malformed),
        repeated_ids=findings(_repeated(documents, lambda document: document.id, "id")),
        repeated_texts=findings(_repeated(documents, lambda document: text_digest(document.text), "text")),
        overlap=None if against is None else findings(_overlap(documents, against)),
        altered=findings(
            f"{where}: `augmented_text` without its thoughts is not the text of {document.id!r}"
            for where, document in documents
            if document.altered
        ),
        characters=sum(len(document.text) for _, document in documents),
        parts={part: parts[part] for part in PARTS},
        sources=dict(Counter(document.source for _, document in documents).most_common()),
        cut=sum(document.cut is not None for _, document in documents),
        thoughts=sum(len(document.thoughts) for _, document in documents),
    )


def _repeated(
    documents: Sequence[tuple[str, Document]], key: Callable[[Document], Hashable], what: str
) -> Iterator[str]:
    first: dict[Hashable, str] = {}
    for where, document in documents:
        if key(document) in first:
            yield f"{where}: the {what} of {document.id!r} repeats that of {first[key(document)]}"
        else:
            first[key(document)] = where


def _overlap(documents: Sequence[tuple[str, Document]], against: Path) -> Iterator[str]:
    rows = documents_and_faults(against)
    places = {text_digest(document.text): where for where, document in rows if isinstance(document, Document)}
    for where, document in documents:
        if (digest := text_digest(document.text)) in places:
            yield f"{where}: the text of {document.id!r} is also at {places[digest]}"
