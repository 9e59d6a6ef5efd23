"""The vectors of a dense index: files of faiss (extra `dense`) by inner product, and exact scores of their best rows.

One scan of a flat file serves all queries of a batch: as a product of matrices, 64 queries cost three times what one
costs, where faiss by default scans once for each. The last bits of such a product depend on its shape, so the best
rows are scored again, each by itself: a score is the same bits whatever was searched together.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sleuth.host.disk import shown
from sleuth.types import SleuthError

HOW_TO_INSTALL = "a dense index needs the packages of an extra: pip install 'sleuth[dense]'"

if TYPE_CHECKING:
    import torch
    from torch import Tensor

HEADER = struct.Struct("<4siqqqBiQ")
"""The header of faiss' flat index file: name, width, rows, two unused numbers, trained, metric, count of floats."""
FLAT_INNER_PRODUCT, UNUSED, INNER_PRODUCT = b"IxFI", 1 << 20, 0
PROBED_SHARE, MIN_PROBED = 1 / 16, 64  # lists searched per query; 16 of 256 lost 6 in 100 passages
SPARE_ROWS = 8  # fetched beyond k, to detect ties at rank k
TIE = 1e-5  # difference of two scores below which a scan may order them wrongly; vectors have length 1
MAX_CANDIDATES = 1024  # fetched at most while all tie with the k-th
COPIED_ROWS = 100_000  # read from the file at once, for a card
SCORE_BYTES = 2**28  # of the scores that are held at once on a card
SPARE_BYTES = 2**30  # of each card, for scores and what is sorted

Device = Literal["cpu", "cuda"]
"""Where vectors are searched."""

Hits = list[tuple[int, float]]
"""(row, score) of a query's candidates, in no particular order; the best k are among them."""


class FlatWriter:
    """Streams vectors into a flat faiss index file that is valid after every `flush`.

    Appends after the first `rows` of an existing file and truncates the rest.
    """

    def __init__(self, path: Path, width: int, rows: int = 0) -> None:
        self.width, self.rows = width, rows
        path.touch()
        self._file = path.open("r+b")
        self._file.truncate(HEADER.size + rows * width * 4)
        self._file.seek(0, 2)

    def append(self, vectors: np.ndarray) -> None:
        """Appends (n, width) float32."""
        self._file.write(vectors.astype("<f4", copy=False).tobytes())
        self.rows += len(vectors)

    def flush(self) -> None:
        """Flushes the rows to the system and updates the header."""
        header = (FLAT_INNER_PRODUCT, self.width, self.rows, UNUSED, UNUSED, 1, INNER_PRODUCT, self.rows * self.width)
        self._file.seek(0)
        self._file.write(HEADER.pack(*header))
        self._file.seek(0, 2)
        self._file.flush()

    def close(self) -> None:
        """Flushes and closes the file."""
        self.flush()
        self._file.close()


def load_faiss() -> Any:
    """The faiss module. Raises SleuthError with the install command if it is missing."""
    try:
        import faiss  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise SleuthError(HOW_TO_INSTALL) from None
    return faiss


def open_vectors(path: Path) -> Any:
    """The faiss index in a file, memory-mapped if its type allows. Raises SleuthError if there is none."""
    faiss = load_faiss()
    try:
        with path.open("rb") as file:
            flat = file.read(4) in (FLAT_INNER_PRODUCT, b"IxF2", b"IxFl")
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if flat else faiss.IO_FLAG_MMAP)
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())[-200:]
        raise SleuthError(f"{path}: no faiss index could be opened here: {reason}") from None
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise SleuthError(f"{path}: a faiss index of distances; expected one of inner products (METRIC_INNER_PRODUCT)")
    if isinstance(index, faiss.IndexIVF):
        index.nprobe = max(MIN_PROBED, round(index.nlist * PROBED_SHARE))
    return index


def vector_settings(index: Any) -> dict[str, Any]:
    """How a faiss index keeps and searches its vectors, as fields of an index card."""
    faiss = load_faiss()
    if isinstance(index, faiss.IndexFlat):
        return {"storage": "flat"}
    storage = type(index).__name__
    if not isinstance(index, faiss.IndexIVF):
        return {"storage": storage}
    if isinstance(index, faiss.IndexIVFScalarQuantizer):
        storage = f"ivf-sq{8 * index.code_size // index.d}"
    elif isinstance(index, faiss.IndexIVFPQ):
        storage = "ivf-pq"
    return {"storage": storage, "lists": index.nlist, "probes": min(index.nprobe, index.nlist)}


def mapped_rows(flat: Path) -> np.ndarray:
    """The (rows, width) float32 of a flat file, memory-mapped."""
    with flat.open("rb") as file:
        _, width, rows, *_ = HEADER.unpack(file.read(HEADER.size))
    return np.memmap(flat, dtype="<f4", mode="r", offset=HEADER.size, shape=(rows, width))


class VectorSearch:
    """The search of a faiss index: exact with one scan for all queries, if its float32 `rows` are given; else
    approximate, where each query reads its own share of the lists. `VectorsOnCards` may take the place of faiss'."""

    def __init__(self, index: Any, rows: np.ndarray | None = None) -> None:
        self.rows = rows
        self.count, self.width = rows.shape if rows is not None else (index.ntotal, index.d)
        self.settings = {"storage": "flat"} if rows is not None else vector_settings(index)
        self._index = index

    def search(self, queries: np.ndarray, k: int) -> list[Hits]:
        """At least the best k rows (fewer if there are fewer) of each of (n, width) float32 queries."""
        k = min(k, self.count)
        limit = min(k + SPARE_ROWS, self.count)
        found = self._scan(queries, limit)
        while self.rows is not None and limit < min(self.count, MAX_CANDIDATES):
            unsure = [at for at, hits in enumerate(found) if _ties_at(k, hits)]
            if not unsure:
                break
            limit = min(4 * limit, self.count)
            for at, hits in zip(unsure, self._scan(queries[unsure], limit), strict=True):
                found[at] = hits
        return found

    def _scan(self, queries: np.ndarray, limit: int) -> list[Hits]:
        # With a product of matrices, the choice of lists would depend on the other queries.
        with _products_from(2**31 - 1 if self.rows is None else 1):
            scores, best = self._index.search(queries, limit)
        if self.rows is not None:
            return [self._scored(query, np.sort(rows[rows >= 0])) for query, rows in zip(queries, best, strict=True)]
        return [
            [(row, score) for row, score in zip(*hits, strict=True) if row >= 0]
            for hits in zip(best.tolist(), scores.tolist(), strict=True)
        ]

    def _scored(self, query: np.ndarray, rows: np.ndarray) -> Hits:
        """The scores of a few rows. A sum along a row, unlike a matrix product, has the same bits in any company."""
        assert self.rows is not None
        scores = (np.asarray(self.rows[rows]) * query).sum(axis=1)
        return list(zip(rows.tolist(), scores.tolist(), strict=True))


def open_search(path: Path, device: Device = "cpu") -> VectorSearch:
    """The search of a faiss file; on `"cuda"` all visible devices share its rows. Raises SleuthError if it cannot be
    opened, or be searched there."""
    index = open_vectors(path)
    with path.open("rb") as file:
        is_flat = file.read(4) == FLAT_INNER_PRODUCT
    rows = mapped_rows(path) if is_flat else None
    if device == "cuda":
        if rows is None:
            raise SleuthError(f"{path}: quantised vectors are searched on the CPU; leave --device out")
        index = VectorsOnCards(rows, cuda_devices())
    return VectorSearch(index, rows)


def _ties_at(k: int, hits: Hits) -> bool:
    scores = sorted((score for _, score in hits), reverse=True)
    return scores[k - 1] - scores[-1] < TIE


_scanning = Lock()


@contextmanager
def _products_from(queries: int) -> Iterator[None]:
    """Scans with a product of matrices from so many queries on. faiss keeps this for the process."""
    variables = load_faiss().cvar
    with _scanning:
        before = variables.distance_compute_blas_threshold
        variables.distance_compute_blas_threshold = queries
        try:
            yield
        finally:
            variables.distance_compute_blas_threshold = before


def cuda_devices() -> list[torch.device]:
    """The CUDA devices that this process may use. Raises SleuthError if this machine shows none."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise SleuthError("--device cuda: this machine shows no CUDA device; leave it out to search on the CPU")
    return [torch.device("cuda", number) for number in range(count)]


class VectorsOnCards:
    """Float32 rows split over devices, in the order of the file. `search` is that of a faiss index."""

    def __init__(self, rows: np.ndarray, devices: Sequence[torch.device]) -> None:
        """Copies `rows` (N, width). Raises SleuthError if a device has too little memory for its share."""
        _require_memory(rows, devices)
        edges = [len(rows) * number // len(devices) for number in range(len(devices) + 1)]
        self._shards = [
            (first, _copied(rows[first:stop], device))
            for first, stop, device in zip(edges, edges[1:], devices, strict=False)
            if stop > first
        ]

    def search(self, queries: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
        """Inner products (n, limit) of queries (n, width), largest first, and their rows. `limit` is at most N."""
        import torch

        asked = torch.from_numpy(np.ascontiguousarray(queries))
        found = [_best(rows, first, asked.to(rows.device), limit) for first, rows in self._shards]  # all at once
        scores = torch.cat([part.cpu() for part, _ in found], dim=1)
        rows = torch.cat([part.cpu() for _, part in found], dim=1)
        best = scores.topk(limit, dim=1)
        return best.values.numpy(), rows.gather(1, best.indices).numpy()


def _best(rows: Tensor, first: int, queries: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """The largest inner products (n, m) with each part of the rows of one device, and the rows' numbers in the file."""
    import torch

    scores: list[Tensor] = []
    numbers: list[Tensor] = []
    for part in rows.split(max(limit, SCORE_BYTES // (4 * len(queries)))):
        best = (queries @ part.T).topk(min(limit, len(part)), dim=1)
        scores.append(best.values)
        numbers.append(best.indices + first)
        first += len(part)
    return torch.cat(scores, dim=1), torch.cat(numbers, dim=1)


def _copied(rows: np.ndarray, device: torch.device) -> Tensor:
    """The rows on a device, by way of a few of them in memory."""
    import torch

    copied = torch.empty(rows.shape, dtype=torch.float32, device=device)
    for start in range(0, len(rows), COPIED_ROWS):
        part = np.array(rows[start : start + COPIED_ROWS], dtype=np.float32)
        copied[start : start + len(part)] = torch.from_numpy(part)
    return copied


def _require_memory(rows: np.ndarray, devices: Sequence[torch.device]) -> None:
    import torch

    needed = -(-len(rows) // len(devices)) * rows.shape[1] * 4 + SPARE_BYTES
    for device in devices:
        if device.type == "cuda" and needed > (free := torch.cuda.mem_get_info(device)[0]):
            raise SleuthError(
                f"{device}: {shown(free)} free, and its share of the vectors, 1 of {len(devices)}, takes "
                f"{shown(needed)}; show more cards, quantise the index (--vectors ivf-sq8), or search on the CPU"
            )
