"""Whether texts can be learned from: all that is wrong with a file of them, not only the first thing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sleuth.data.documents import PARTS, documents_and_faults, part_of, text_digest
from sleuth.metrics.data_check import Findings, findings
from sleuth.types import Document, SleuthError


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReport:
    """What a check of `rows` texts found.

    `malformed` rows are no documents. `repeated_ids` are of rows whose id an earlier row has: no run takes such a file.
    `repeated_texts` have, but for white space, the text of an earlier row; a run passes them over. `overlap` are texts
    that the other data has too; None where there is none. `altered` are texts whose copy with thoughts in it is another
    text, so that a run has no thoughts of theirs. `parts` counts documents by what their origin is for,
    `sources` by source. `cut` counts those that say where their ending begins, `thoughts` the thoughts in all.
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
        """Rows for which a run would refuse the data."""
        return self.malformed.count + self.repeated_ids.count


def check_text(
    data: Path, against: Path | None = None, progress: Callable[[int], None] = lambda done: None
) -> TextReport:
    """Read texts to their end; `progress` is told the rows read."""
    documents: list[tuple[str, Document]] = []
    malformed: list[str] = []
    for done, (where, found) in enumerate(documents_and_faults(data), start=1):
        progress(done)
        if isinstance(found, SleuthError):
            malformed.append(str(found))
        else:
            documents.append((where, found))
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
            yield f"{where}: the {what} of {document.id!r} is that of {first[key(document)]}"
        else:
            first[key(document)] = where


def _overlap(documents: Sequence[tuple[str, Document]], against: Path) -> Iterator[str]:
    there = {
        text_digest(found.text): where for where, found in documents_and_faults(against) if isinstance(found, Document)
    }
    for where, document in documents:
        if (digest := text_digest(document.text)) in there:
            yield f"{where}: the text of {document.id!r} is also at {there[digest]}"
