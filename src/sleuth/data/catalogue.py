"""Corpora and test sets that `sleuth get` knows by name. Sizes and checksums are those that the hub states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sleuth.data.hub import HubLocation
from sleuth.types import SleuthError

FLASHRAG = "hf://RUC-NLPIR/FlashRAG_datasets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A corpus, with published `vectors` in parts and their `encoder`, or a file of questions.

    `Entry(name="nq", file="hf://RUC-NLPIR/FlashRAG_datasets/nq/test.jsonl", licence="CC BY-SA 3.0", about="...")`.
    `passages` of a corpus is their number, `width` the numbers of a vector, `questions` the name of the entry that
    measures its recall. A `licence` that is empty stands on the card of the source.
    """

    name: str
    about: str
    file: str
    licence: str = ""
    passages: int = 0
    vectors: tuple[str, ...] = ()
    encoder: str = ""
    width: int = 0
    questions: str = ""

    @property
    def is_corpus(self) -> bool:
        """Whether it is passages, and not questions."""
        return self.passages > 0

    def index(self, kind: str) -> Path:
        """Where recipes that ship look for its index: `indexes/wiki-18-bm25`, or `indexes/wiki-18-e5` of vectors."""
        family = self.encoder.rpartition("/")[2].partition("-")[0]
        return Path("indexes") / f"{self.name}-{family if kind == 'dense' and family else kind}"


ENTRIES = (
    Entry(
        name="wiki-18",
        about="Wikipedia of December 2018 in passages of 100 words (DPR, arXiv:2004.04906), as Search-R1 searches it",
        file="hf://PeterJinGo/wiki-18-corpus/wiki-18.jsonl.gz",
        licence="CC BY-SA 3.0",
        passages=21_015_324,
        vectors=("hf://PeterJinGo/wiki-18-e5-index/part_aa", "hf://PeterJinGo/wiki-18-e5-index/part_ab"),
        encoder="intfloat/e5-base-v2",
        width=768,
        questions="nq",
    ),
    Entry(name="nq", about="Natural Questions, test", file=f"{FLASHRAG}/nq/test.jsonl", licence="CC BY-SA 3.0"),
    Entry(name="triviaqa", about="TriviaQA, test", file=f"{FLASHRAG}/triviaqa/test.jsonl"),
    Entry(name="popqa", about="PopQA, test", file=f"{FLASHRAG}/popqa/test.jsonl"),
    Entry(name="hotpotqa", about="HotpotQA, dev", file=f"{FLASHRAG}/hotpotqa/dev.jsonl", licence="CC BY-SA 4.0"),
    Entry(name="2wikimultihopqa", about="2WikiMultihopQA, dev", file=f"{FLASHRAG}/2wikimultihopqa/dev.jsonl"),
    Entry(name="musique", about="MuSiQue, dev", file=f"{FLASHRAG}/musique/dev.jsonl", licence="CC BY 4.0"),
    Entry(name="bamboogle", about="Bamboogle, test", file=f"{FLASHRAG}/bamboogle/test.jsonl"),
)


def find_entry(name: str) -> Entry:
    """The entry of a name. Raises SleuthError with all names if there is none."""
    for entry in ENTRIES:
        if entry.name == name:
            return entry
    raise SleuthError(f"sleuth get {name}: no corpus or test set of this name; there are {', '.join(names())}")


def command_for(index: Path) -> str | None:
    """The command that writes the index at a path; None for one that is of no entry."""
    commands = {
        entry.index(kind): f"sleuth get {entry.name}{' --kind dense' if kind == 'dense' else ''}"
        for entry in ENTRIES
        for kind in ("bm25", "dense")
        if entry.is_corpus
    }
    return commands.get(index)


def names() -> list[str]:
    """All names, in the order of the table."""
    return [entry.name for entry in ENTRIES]


def location_of(file: str) -> HubLocation:
    """The place on the hub of a file of an entry."""
    found = HubLocation.read(Path(file))
    assert found is not None, file
    return found
