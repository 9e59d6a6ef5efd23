from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from small_models import assert_same_tensors, written_tensors

from sleuth.convert import merge
from sleuth.convert.layouts import WholeTensor, assemble_tensor
from sleuth.convert.merge import write_weights
from sleuth.host.memory import parse_size
from sleuth.types import SleuthError

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint8, torch.bool)


def wholes(tensors: dict[str, torch.Tensor]) -> dict[str, WholeTensor]:
    return {name: assemble_tensor([tensor], tuple(tensor.shape), name) for name, tensor in tensors.items()}


def write(folder: Path, tensors: dict[str, torch.Tensor], dtype: torch.dtype | None = None) -> int:
    return write_weights(folder, wholes(tensors), dtype=dtype, progress=lambda done, total: None)


def test_the_safetensors_library_reads_every_dtype_and_shape_that_is_written(tmp_path: Path) -> None:
    tensors = {str(dtype): torch.arange(6).view(2, 3).to(dtype) for dtype in DTYPES}
    tensors |= {"scalar": torch.tensor(3.5), "none": torch.zeros(0, 4), "transposed": torch.randn(3, 5).t()}
    assert write(tmp_path, tensors) == 1
    assert_same_tensors(written_tensors(tmp_path), tensors)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_files_stay_below_the_maximum_size_and_the_index_lists_each_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "MAX_FILE_BYTES", 800)
    tensors = {f"w{number}": torch.randn(10, 10) for number in range(5)} | {"large": torch.randn(30, 10)}
    assert write(tmp_path, tensors) == 4
    assert_same_tensors(written_tensors(tmp_path), tensors)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    assert set(index["weight_map"].values()) == {path.name for path in tmp_path.glob("*.safetensors")}
    assert max(path.stat().st_size for path in tmp_path.glob("model-0000[1-3]*")) < 800 + 400  # and a header
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / file, "pt") as opened:
            assert torch.equal(opened.get_tensor(name), tensors[name])


@pytest.mark.parametrize(
    ("text", "size"), [("500MB", 5 * 10**8), ("2GB", 2 * 10**9), ("1.5 gb", 15 * 10**8), ("10kb", 10**4), ("7", 7)]
)
def test_sizes_are_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "0GB", "-1GB", "2TBs", "2 G B"])
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(SleuthError, match="such as 500MB or 2GB"):
        parse_size(text)
