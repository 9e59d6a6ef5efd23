"""What an index says about itself: `card.json` in its folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from sleuth.types import SleuthError

FILE_NAME = "card.json"
HOW_TO_MAKE = "make one with `sleuth index CORPUS {folder}`"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCard:
    """What was indexed, and how.

    `IndexCard(kind="bm25", count=19258, corpus_sha256="8c1f...", k1=1.2, b=0.75, layout=1, library="tantivy 0.27.0")`.
    `layout` names the fields and the analysis of words; an index of another layout is not searched.
    """

    kind: str
    count: int
    corpus_sha256: str
    k1: float
    b: float
    layout: int
    library: str


def write_card(card: IndexCard, folder: Path) -> None:
    """Leave the card in the folder of its index."""
    (folder / FILE_NAME).write_text(json.dumps(asdict(card), indent=2) + "\n")


def read_card(folder: Path) -> IndexCard:
    """The card of an index. Raises SleuthError, with the command that makes an index, where there is none."""
    how = HOW_TO_MAKE.format(folder=folder)
    try:
        text = (folder / FILE_NAME).read_text()
    except (FileNotFoundError, NotADirectoryError):
        raise SleuthError(f"{folder}: no index here; {how}") from None
    try:
        return IndexCard(**json.loads(text))
    except (ValueError, TypeError):
        raise SleuthError(f"{folder / FILE_NAME}: not the card of an index that this version knows; {how}") from None


def is_index(folder: Path) -> bool:
    """Whether the folder holds an index, of whatever layout."""
    return (folder / FILE_NAME).is_file()
