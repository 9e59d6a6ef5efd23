"""What an index costs by how it keeps passages: disk, memory, building and searching, by rates that were measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from sleuth.data.catalogue import BM25_BYTES, DENSE_BYTES
from sleuth.host.disk import shown

Storage = Literal["flat", "ivf-sq8", "ivf-pq"]
"""Exact with 4 bytes per number; or, in inverted lists of which a share is searched, one byte per number (`ivf-sq8`) or
about a quarter of a byte (`ivf-pq`, product quantisation)."""

MAX_LISTS, ROWS_PER_LIST = 4096, 64  # of an IVF index; centroids are trained on `ROWS_PER_LIST` rows per list
NUMBERS_PER_PART = 4  # of product quantisation: one byte stands for so many numbers
ROW_NUMBER = 8  # bytes beside a quantised vector
WIDTH, TOGETHER = 768, 128  # of the measurements: numbers of a vector, and queries of a merged scan
PASSAGE_SECONDS, QUERY_SECONDS = 0.45, 0.07  # of a thread, to encode one with 12 layers of 768 numbers, as E5-base's
SAMPLES, GROWTH = 2.15, 1.45  # memory over that of the rows that are trained on, and over that of lists while they grow
BM25_MEMORY = 1_177_000_000  # building 5 million passages, with mapped files; hardly more than for one million


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Seconds of one thread for a million passages of `WIDTH` numbers: `once` a scan and for each `query` in it, to
    `train` 4,096 centroids and to `add` passages to their lists, or to words; and for each `call`, of any size."""

    call: float = 0.0
    once: float = 0.0
    query: float
    train: float = 0.0
    add: float = 0.0


RATES = {
    "flat": Rates(once=0.264, query=0.0124),
    "ivf-sq8": Rates(call=0.0017, query=0.005, train=183, add=63),
    "ivf-pq": Rates(call=0.0014, query=0.0047, train=206, add=80),
    "bm25": Rates(query=1 / 500, add=105),
}
"""By the storage of an index card, or `bm25`. `python -m benchmarks.quantised` measures them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCost:
    """Bytes of `disk` in the end and `peak_disk` meanwhile, of memory to `build` beside an encoder and to `load` all
    that is searched; thread-seconds of `work` beside encoding, and of a query `alone` or `together` with 127 others."""

    disk: int
    peak_disk: int
    build: int
    load: int
    work: float
    alone: float
    together: float


def search_seconds(storage: str, passages: int, *, width: int = WIDTH, together: int = 1) -> float:
    """Thread-seconds of one query, without encoding it, where `together` queries share a scan. Raises KeyError for
    the storage of another tool."""
    rates, lists = RATES[storage], lists_for(passages) if storage.startswith("ivf") else 0
    centroids = search_seconds("flat", lists, width=width) if lists else 0.0  # each query looks at all
    return (
        centroids + rates.call / together + _millions(storage, passages, width) * (rates.once / together + rates.query)
    )


def index_cost(storage: str, passages: int, width: int = WIDTH) -> IndexCost:
    """What an index of so many passages costs, its text included."""
    lists, flat = lists_for(passages), 4 * width * passages
    row = {"ivf-sq8": width + ROW_NUMBER, "ivf-pq": width // NUMBERS_PER_PART + ROW_NUMBER}.get(storage)
    quantised = passages * row + 4 * width * lists if row else 0
    vectors = quantised or (flat if storage == "flat" else 0)
    text = passages * (DENSE_BYTES if vectors else BM25_BYTES)
    sample, filled = 4 * width * lists * ROWS_PER_LIST, lists / MAX_LISTS if quantised else 1
    return IndexCost(
        disk=text + vectors,
        peak_disk=text + vectors + (flat if quantised else 0),
        build=int(max(SAMPLES * sample, GROWTH * quantised)) if quantised else 0 if vectors else BM25_MEMORY,
        load=vectors or text,
        work=filled * (RATES[storage].train * filled + RATES[storage].add * _millions(storage, passages, width)),
        alone=search_seconds(storage, passages, width=width),
        together=search_seconds(storage, passages, width=width, together=TOGETHER),
    )


def index_plan(passages: int, width: int = 0) -> tuple[dict[str, Any], list[str]]:
    """What each storage costs, as JSON and as lines."""
    width = width or WIDTH
    costs = {storage: index_cost(storage, passages, width) for storage in RATES}
    seconds = passages * PASSAGE_SECONDS
    lines = [
        f"{passages:,} passages of {width} numbers; hours, and queries a second alone and {TOGETHER} together, are "
        f"those of one thread; encoding takes {seconds / 3600:,.1f} hours by an encoder of the size of E5-base"
    ]
    lines += [
        f"{storage}: disk {shown(cost.disk)}, while it is built {shown(cost.peak_disk)}; memory {shown(cost.build)} to "
        f"build, {shown(cost.load)} to search; {cost.work / 3600:.1f} hours; {1 / cost.alone:.2g} and "
        f"{1 / cost.together:.2g} queries a second"
        for storage, cost in costs.items()
    ]
    record = {"passages": passages, "width": width, "encode_seconds": seconds}
    return record | {"storages": {storage: asdict(cost) for storage, cost in costs.items()}}, lines


def lists_for(passages: int) -> int:
    """The lists of a quantised index, a power of two."""
    return min(MAX_LISTS, 1 << max(0, (passages // ROWS_PER_LIST).bit_length() - 1))


def _millions(storage: str, passages: int, width: int) -> float:
    return passages / 1e6 * (1 if storage == "bm25" else width / WIDTH)
