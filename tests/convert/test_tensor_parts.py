from __future__ import annotations

import pytest
import torch

from sleuth.convert.layouts import TensorPart, WholeTensor


def whole(*offsets: tuple[int, int]) -> WholeTensor:
    """4 x 4 in boxes of 2 x 2."""
    parts = tuple(TensorPart(offset=offset, tensor=torch.ones(2, 2)) for offset in offsets)
    return WholeTensor(shape=(4, 4), dtype=torch.float32, parts=parts)


def test_parts_that_fill_the_shape_are_complete() -> None:
    assert whole((0, 0), (0, 2), (2, 0), (2, 2)).is_complete()
    assert WholeTensor(shape=(0, 4), dtype=torch.float32, parts=()).is_complete()


@pytest.mark.parametrize(
    "offsets",
    [
        ((0, 0), (0, 2), (2, 0)),  # a hole
        ((0, 0), (0, 2), (2, 0), (1, 2)),  # an overlap beside a hole of its size
        ((0, 0), (0, 2), (2, 0), (3, 2)),  # beyond the last row
        ((0, 0), (0, 2), (2, 0), (-1, 2)),  # before the first
    ],
)
def test_parts_that_do_not_fill_it_are_not(offsets: tuple) -> None:
    assert not whole(*offsets).is_complete()


def test_boxes_that_touch_do_not_overlap() -> None:
    first, beside, across = (TensorPart(offset=offset, tensor=torch.ones(2, 2)) for offset in ((0, 0), (0, 2), (1, 1)))
    assert not first.overlaps(beside)
    assert first.overlaps(across)
    assert beside.overlaps(across)
