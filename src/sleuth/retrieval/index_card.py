"""The metadata of an index: `card.json` in its folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from sleuth.types import SleuthError

FILE_NAME = "card.json"
OLD = ".old"  # after the name of an index that is being replaced
HOW_TO_MAKE = "make one with `sleuth index CORPUS {folder}`"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderCard:
    """The sentence encoder of the vectors and its settings; queries must be encoded the same way.

    `EncoderCard(model="intfloat/e5-base-v2", query_prefix="query: ", passage_prefix="passage: ", width=768)`.
    `model` is a folder or a hub id. `pooling` None is the model's own; `width` is the length of a vector.
    """

    model: str
    query_prefix: str = ""
    passage_prefix: str = ""
    pooling: str | None = None
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCard:
    """What was indexed and how.

    `IndexCard(kind="bm25", count=19258, corpus_sha256="8c1f...", k1=1.2, b=0.75, layout=1, library="tantivy 0.27.0")`.
    `layout` is the version of the files and text analysis; other versions are refused. `k1` and `b` are BM25's.
    `encoder`, `vectors` (a faiss file) and `passages` (a .jsonl corpus) are those of a dense index; the two paths are
    relative to the folder of the index unless absolute. `corpus_bytes` is the size of a corpus that lies elsewhere and
    must not change. `storage` is how vectors are kept: `flat`, `ivf-sq8`, `ivf-pq`.
    `flat_recall` of quantised ones, measured when they were built, is the share of the ten nearest passages by exact
    search, of 200 passages, that are found too: `{"value": 0.97, "low": 0.96, "high": 0.98, "n": 200}`.
    """

    kind: str
    count: int
    corpus_sha256: str
    layout: int
    library: str
    k1: float | None = None
    b: float | None = None
    encoder: EncoderCard | None = None
    vectors: str | None = None
    passages: str | None = None
    corpus_bytes: int | None = None
    storage: str | None = None
    flat_recall: dict[str, float] | None = None

    def as_json(self) -> dict[str, object]:
        """The fields that are not None."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def write_card(card: IndexCard, folder: Path) -> None:
    """Writes the card into the folder of its index."""
    (folder / FILE_NAME).write_text(json.dumps(card.as_json(), indent=2) + "\n")


def read_card(folder: Path) -> IndexCard:
    """The card of an index. Raises SleuthError, with the command that makes an index, if there is none."""
    how = HOW_TO_MAKE.format(folder=folder)
    try:
        text = (folder / FILE_NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if is_index(old := folder.with_name(folder.name + OLD)):
            raise SleuthError(f"{folder}: a killed build left its index as {old}; rename that to {folder}") from None
        raise SleuthError(f"{folder}: no index here; {how}") from None
    try:
        fields = json.loads(text)
        encoder = EncoderCard(**fields["encoder"]) if "encoder" in fields else None
        return IndexCard(**(fields | {"encoder": encoder}))
    except (ValueError, TypeError):
        raise SleuthError(f"{folder / FILE_NAME}: not the card of an index that this version knows; {how}") from None


def require_card(folder: Path, kind: str, layout: int) -> IndexCard:
    """The card of an index of this kind and layout. Raises SleuthError for any other."""
    card = read_card(folder)
    if (card.kind, card.layout) != (kind, layout):
        actual = f"{card.kind} index of layout {card.layout}"
        how = HOW_TO_MAKE.format(folder=folder)
        raise SleuthError(f"{folder}: a {actual}, expected {kind} of layout {layout}; {how}")
    return card


def is_index(folder: Path) -> bool:
    """Whether the folder has an index, of any layout."""
    return (folder / FILE_NAME).is_file()
