from __future__ import annotations

import pytest
import torch

from sleuth.convert.tensor_parts import TensorPart, Whole


def whole(*offsets: tuple[int, int]) -> Whole:
    """4 x 4 in boxes of 2 x 2."""
    pieces = tuple(TensorPart(offset=offset, tensor=torch.ones(2, 2)) for offset in offsets)
    return Whole(shape=(4, 4), dtype=torch.float32, pieces=pieces)


def test_pieces_that_fill_the_shape_are_complete() -> None:
    assert whole((0, 0), (0, 2), (2, 0), (2, 2)).is_complete()
    assert Whole(shape=(0, 4), dtype=torch.float32, pieces=()).is_complete()


@pytest.mark.parametrize(
    "offsets",
    [
        ((0, 0), (0, 2), (2, 0)),  # a hole
        ((0, 0), (0, 2), (2, 0), (1, 2)),  # an overlap beside a hole of its size
        ((0, 0), (0, 2), (2, 0), (3, 2)),  # beyond the last row
        ((0, 0), (0, 2), (2, 0), (-1, 2)),  # before the first
    ],
)
def test_pieces_that_do_not_fill_it_are_not(offsets: tuple) -> None:
    assert not whole(*offsets).is_complete()


def test_boxes_that_touch_do_not_overlap() -> None:
    first, beside, across = (TensorPart(offset=offset, tensor=torch.ones(2, 2)) for offset in ((0, 0), (0, 2), (1, 1)))
    assert not first.overlaps(beside)
    assert first.overlaps(across)
    assert beside.overlaps(across)
