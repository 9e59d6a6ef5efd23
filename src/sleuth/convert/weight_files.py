"""Writes safetensors files a few rows at a time, so that writing takes almost no memory.

Format: the length of the header in eight bytes, a JSON header with the offsets of each tensor, then the tensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from sleuth.convert.layouts import WholeTensor

ROWS_BYTES = 2**24
"""Approximate number of bytes that are assembled in memory before they are written."""
INDEX = "model.safetensors.index.json"
DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def stored_dtype(whole: WholeTensor, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype in which a tensor is written: its own, or `dtype` if it is floating-point and `dtype` is given."""
    return dtype if dtype is not None and whole.dtype.is_floating_point else whole.dtype


def stored_bytes(whole: WholeTensor, dtype: torch.dtype | None) -> int:
    """Bytes of a tensor on disk."""
    return whole.numel * stored_dtype(whole, dtype).itemsize


def write_weights(
    folder: Path,
    weights: Mapping[str, WholeTensor],
    *,
    dtype: torch.dtype | None,
    max_file_bytes: int,
    progress: Callable[[int, int], None],
) -> int:
    """Writes `model*.safetensors`, with an index if there are several; returns their number. A file has at most
    `max_file_bytes` of tensors, or a single larger tensor."""
    files = list(_shards(weights, dtype, max_file_bytes))
    names = [f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)]
    if len(files) == 1:
        names = ["model.safetensors"]
    else:
        total = sum(stored_bytes(whole, dtype) for whole in weights.values())
        weight_map = {tensor: name for name, shard in zip(names, files, strict=True) for tensor in shard}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    done = 0
    for name, shard in zip(names, files, strict=True):
        for _ in _write_file(folder / name, shard, dtype):
            done += 1
            progress(done, len(weights))
    return len(files)


def _shards(
    weights: Mapping[str, WholeTensor], dtype: torch.dtype | None, max_bytes: int
) -> Iterator[dict[str, WholeTensor]]:
    """The tensors of each file, in order."""
    file: dict[str, WholeTensor] = {}
    file_bytes = 0
    for name, whole in weights.items():
        size = stored_bytes(whole, dtype)
        if file and file_bytes + size > max_bytes:
            yield file
            file, file_bytes = {}, 0
        file[name] = whole
        file_bytes += size
    yield file


def _write_file(path: Path, weights: Mapping[str, WholeTensor], dtype: torch.dtype | None) -> Iterator[str]:
    """Writes a file; yields the name of each tensor once it is written."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, whole in weights.items():
        start, end = end, end + stored_bytes(whole, dtype)
        written = DTYPE_NAMES[stored_dtype(whole, dtype)]
        header[name] = {"dtype": written, "shape": list(whole.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the tensors to eight bytes
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, whole in weights.items():
            for block in row_blocks(whole):
                file.write(block.to(stored_dtype(whole, dtype)).flatten().view(torch.uint8).numpy().data)
            yield name


def row_blocks(whole: WholeTensor, *, together: int = 1) -> Iterator[torch.Tensor]:
    """Yields the rows of a tensor in blocks of about ROWS_BYTES, each a multiple of `together` rows."""
    row = math.prod(whole.shape[1:]) * whole.dtype.itemsize
    step = max(1, ROWS_BYTES // max(row * together, 1)) * together
    for start in range(0, whole.num_rows, step):
        yield whole.rows(start, min(start + step, whole.num_rows))
