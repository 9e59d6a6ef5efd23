"""The vectors of a flat index on one or more CUDA devices, each of which holds as many of the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sleuth.types import SleuthError

COPIED_ROWS = 100_000  # read from the file at once
SCORE_BYTES = 2**28  # of the scores that are held at once
SPARE_BYTES = 2**30  # of each device, for scores and what is sorted


def cuda_devices() -> list[torch.device]:
    """The CUDA devices that this process may use. Raises SleuthError if this machine shows none."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise SleuthError("--device cuda: this machine shows no CUDA device; leave it out to search on the CPU")
    return [torch.device("cuda", number) for number in range(count)]


class VectorsOnCards:
    """Float32 rows split over devices, in the order of the file. `search` is that of a faiss index."""

    def __init__(self, rows: np.ndarray, devices: Sequence[torch.device]) -> None:
        """Copies `rows` (N, width). Raises SleuthError if a device has too little memory for its share."""
        edges = [len(rows) * number // len(devices) for number in range(len(devices) + 1)]
        _require_memory(rows, devices)
        self._shards = [
            (first, _copied(rows[first:stop], device))
            for first, stop, device in zip(edges, edges[1:], devices, strict=False)
            if stop > first
        ]

    def search(self, queries: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
        """Inner products (n, limit) of queries (n, width), largest first, and their rows. `limit` is at most N."""
        asked = torch.from_numpy(np.ascontiguousarray(queries))
        found = [_best(rows, first, asked.to(rows.device), limit) for first, rows in self._shards]  # all at once
        scores = torch.cat([part.cpu() for part, _ in found], dim=1)
        rows = torch.cat([part.cpu() for _, part in found], dim=1)
        best = scores.topk(limit, dim=1)
        return best.values.numpy(), rows.gather(1, best.indices).numpy()


def _best(rows: Tensor, first: int, queries: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """The largest inner products (n, at most limit) with the rows of one device, and the rows' numbers in the file."""
    scores = queries.new_empty(len(queries), 0)
    numbers = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    for part in rows.split(max(limit, SCORE_BYTES // (4 * len(queries)))):
        best = (queries @ part.T).topk(min(limit, len(part)), dim=1)
        scores = torch.cat([scores, best.values], dim=1)
        numbers = torch.cat([numbers, best.indices + first], dim=1)
        kept = scores.topk(min(limit, scores.shape[1]), dim=1)
        scores, numbers = kept.values, numbers.gather(1, kept.indices)
        first += len(part)
    return scores, numbers


def _copied(rows: np.ndarray, device: torch.device) -> Tensor:
    """The rows on a device, by way of a few of them in memory."""
    copied = torch.empty(rows.shape, dtype=torch.float32, device=device)
    for start in range(0, len(rows), COPIED_ROWS):
        part = np.array(rows[start : start + COPIED_ROWS], dtype=np.float32)
        copied[start : start + len(part)] = torch.from_numpy(part)
    return copied


def _require_memory(rows: np.ndarray, devices: Sequence[torch.device]) -> None:
    share = -(-len(rows) // len(devices)) * rows.shape[1] * 4
    for device in devices:
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
        if free is not None and share + SPARE_BYTES > free:
            raise SleuthError(
                f"{device}: {free / 1e9:.1f} GB free, and its share of the vectors, 1 of {len(devices)}, takes "
                f"{(share + SPARE_BYTES) / 1e9:.1f} GB; show more cards, quantise the index (--vectors ivf-sq8), or "
                "search on the CPU"
            )
