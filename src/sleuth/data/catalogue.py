"""Corpora and test sets that `sleuth get` knows by name, and how their files are fetched. Sizes and checksums are those
that the hub states."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sleuth.data.hub import HubLocation, ProgressBar, RemoteFile, download, remote_file
from sleuth.host.disk import free_bytes, shown
from sleuth.types import SleuthError

FLASHRAG = "hf://RUC-NLPIR/FlashRAG_datasets"
ONE_FILE, OLYMPIAD = "test-00000-of-00001.parquet", "OE_TO_maths_en_COMP"
BM25_BYTES = 900  # of an index on disk for each passage of 100 words: 660 of text, 240 of words
DENSE_BYTES = 760  # beside the vectors: the text and an offset, if the corpus is compressed
JOINED = "vectors.faiss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A corpus, with published `vectors` in parts and their `encoder`, or a file of questions or, with a `layout`, of
    problems (`[[stage.sets]]` of `kind = "reason"`).

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
    layout: str = ""

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
    Entry(name="gsm8k", about="GSM8K, test", file=f"hf://openai/gsm8k/main/{ONE_FILE}", licence="MIT", layout="gsm8k"),
    Entry(name="math-500", about="MATH-500, test", file="hf://HuggingFaceH4/MATH-500/test.jsonl", layout="math_500"),
    Entry(
        name="gpqa-diamond",
        about="GPQA-Diamond; its terms have to be accepted on the hub first",
        file="hf://Idavidrein/gpqa/gpqa_diamond.csv",
        licence="CC BY 4.0",
        layout="gpqa_diamond",
    ),
    Entry(
        name="olympiad-bench",
        about="OlympiadBench, mathematics in English without pictures",
        file=f"hf://Hothan/OlympiadBench/OlympiadBench/{OLYMPIAD}/{OLYMPIAD}.parquet",
        licence="Apache 2.0",
        layout="olympiad_bench",
    ),
)


def find_entry(name: str) -> Entry:
    """The entry of a name. Raises SleuthError with all names if there is none."""
    known = {entry.name: entry for entry in ENTRIES}
    if name not in known:
        raise SleuthError(f"sleuth get {name}: no corpus or test set of this name; there are {', '.join(known)}")
    return known[name]


def entry_at(index: Path) -> tuple[Entry, str] | None:
    """The entry whose index is at a path, and the kind of that index; None for one that is of no entry."""
    kinds = ((entry, kind) for entry in ENTRIES if entry.is_corpus for kind in ("bm25", "dense"))
    return next(((entry, kind) for entry, kind in kinds if entry.index(kind) == index), None)


def command_for(index: Path) -> str | None:
    """The command that writes the index or the test set at a path; None for one that is of no entry."""
    if (found := entry_at(index)) is not None:
        return f"sleuth get {found[0].name}{' --kind dense' if found[1] == 'dense' else ''}"
    sets = (entry.name for entry in ENTRIES if Path("data", entry.name, Path(entry.file).name) == index)
    return next((f"sleuth get {name}" for name in sets), None)


def location_of(file: str) -> HubLocation:
    """The place on the hub of a file of an entry."""
    location = HubLocation.read(Path(file))
    assert location is not None, file
    return location


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The files of an entry, and what `download` and `index` will take on disk, in bytes."""

    corpus: RemoteFile
    vectors: tuple[RemoteFile, ...]
    download: int
    index: int

    def line(self, folder: Path) -> str:
        """`21.6 GB to download and 18.9 GB for the index in DIR, which has 500.0 GB free`."""
        sizes = f"{shown(self.download)} to download and {shown(self.index)} for the index"
        return f"{sizes} in {folder}, which has {shown(free_bytes(folder))} free"


def needs_of(entry: Entry, folder: Path, *, dense: bool) -> Needs:
    """Asks the hub for the sizes of an entry's files. Raises SleuthError where the disk is too small for all of them,
    and for the index."""
    corpus = remote_file(location_of(entry.file))
    vectors = tuple(remote_file(location_of(file)) for file in entry.vectors) if dense else ()
    there = sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) if folder.is_dir() else 0
    joining = max((file.size for file in vectors), default=0)  # a part is removed only once it is appended
    needed = Needs(
        corpus=corpus,
        vectors=vectors,
        download=max(0, sum(file.size for file in (corpus, *vectors)) - there),
        index=entry.passages * (DENSE_BYTES if dense else BM25_BYTES) + joining,
    )
    if needed.download + needed.index > free_bytes(folder):
        raise SleuthError(f"{entry.name}: not enough disk: {needed.line(folder)}; name a DIR on a larger disk")
    return needed


def fetch_vectors(files: Sequence[RemoteFile], folder: Path, watch: ProgressBar) -> Path:
    """The parts of a faiss file, downloaded one after the other and joined. Each is removed once it is appended; an
    interrupted call goes on where it stopped."""
    target, partial = folder / JOINED, folder / f"{JOINED}.joining"
    total = sum(file.size for file in files)
    if target.exists() and target.stat().st_size == total:
        return target
    end = 0
    for file in files:
        end += file.size
        if partial.exists() and partial.stat().st_size >= end:
            (folder / file.name).unlink(missing_ok=True)
            continue
        append_file(download(file, folder, watch), partial, end - file.size)
        (folder / file.name).unlink()
    os.replace(partial, target)
    return target


def append_file(part: Path, target: Path, start: int) -> None:
    """Writes a file into another from byte `start` on, whatever a killed call left behind it."""
    target.touch()
    with part.open("rb") as source, target.open("r+b") as sink:
        sink.truncate(start)
        sink.seek(start)
        shutil.copyfileobj(source, sink, 2**22)
        sink.flush()
        os.fsync(sink.fileno())
