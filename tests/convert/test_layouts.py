from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from sleuth.convert.inert import DTensor, Inert, OtherPlacement, Replicate, Shard, fields_of
from sleuth.convert.layouts import assemble_tensor
from sleuth.types import SleuthError

VALUES = torch.arange(35).view(7, 5)


def inert(kind: type[Inert], **fields: Any) -> Any:
    made = kind()
    made.state = fields
    return made


def shard(dim: int) -> Any:
    return inert(Shard, dim=dim)


def mesh_until_2_8(shape: Sequence[int], coordinate: tuple[int, ...]) -> Any:
    return inert(Inert, mesh=torch.zeros(*shape), _coordinate_on_dim=list(coordinate))


def mesh_until_2_12(shape: Sequence[int], coordinate: tuple[int, ...]) -> Any:
    sizes = shape[0] if len(shape) == 1 else tuple(shape)
    return inert(Inert, _layout=inert(Inert, shape=sizes, stride=None), _coordinate_on_dim=coordinate)


def mesh_of_2_13(shape: Sequence[int], coordinate: tuple[int, ...]) -> Any:
    axes = tuple(inert(Inert, shape=() if size == 1 else (size,), stride=()) for size in shape)
    return inert(Inert, _layout=inert(Inert, axes=axes), _coordinate_on_dim=coordinate)


def dtensor(local: torch.Tensor, mesh: Any, *placements: Any) -> DTensor:
    entry = torch.Tensor._make_wrapper_subclass(DTensor, VALUES.shape, dtype=VALUES.dtype)
    entry.state = (None, {"_local_tensor": local, "_spec": inert(Inert, mesh=mesh, placements=placements)})
    return entry


def assembled(entries: Sequence[Any], shape: tuple[int, ...] = (7, 5)) -> torch.Tensor:
    whole = assemble_tensor(entries, shape, "w")
    return whole.rows(0, whole.num_rows)


@pytest.mark.parametrize("mesh", [mesh_until_2_8, mesh_until_2_12, mesh_of_2_13])
def test_meshes_of_every_torch_version_are_understood(mesh: Any) -> None:
    parts = [dtensor(part, mesh((4,), (rank,)), shard(0)) for rank, part in enumerate(VALUES.split(2))]
    assert torch.equal(assembled(parts), VALUES)


@pytest.mark.parametrize("mesh", [mesh_until_2_8, mesh_until_2_12, mesh_of_2_13])
def test_replicas_of_a_hybrid_mesh_are_read_once(mesh: Any) -> None:
    parts = [
        dtensor(part, mesh((2, 2), (replica, rank)), Replicate(), shard(0))
        for replica in range(2)
        for rank, part in enumerate(VALUES.split(4))
    ]
    whole = assemble_tensor(parts, (7, 5), "w")
    assert len(whole.parts) == 2
    assert torch.equal(whole.rows(0, 7), VALUES)


def test_column_shards_are_joined() -> None:
    parts = [dtensor(VALUES[:, 3 * rank :][:, :3], mesh_of_2_13((2,), (rank,)), shard(1)) for rank in range(2)]
    assert torch.equal(assembled(parts), VALUES)


def test_shards_of_rows_and_columns_are_joined() -> None:
    parts = [
        dtensor(VALUES[4 * row :][:4, 3 * column :][:, :3], mesh_of_2_13((2, 2), (row, column)), shard(0), shard(1))
        for row in range(2)
        for column in range(2)
    ]
    assert torch.equal(assembled(parts), VALUES)


def test_the_last_ranks_may_be_empty() -> None:
    parts = [dtensor(VALUES[3 * rank :][:3], mesh_of_2_13((5,), (rank,)), shard(0)) for rank in range(5)]
    with pytest.raises(SleuthError, match="was not saved as torch"):  # 7 rows in 5 chunks are 2, 2, 2, 1, 0
        assembled(parts)
    parts = [dtensor(VALUES[2 * rank :][:2], mesh_of_2_13((5,), (rank,)), shard(0)) for rank in range(5)]
    assert torch.equal(assembled(parts), VALUES)


@pytest.mark.parametrize("placements", [(inert(OtherPlacement), Replicate()), (shard(0), shard(0))])
def test_tensor_parallelism_is_refused(placements: tuple) -> None:
    entry = dtensor(VALUES, mesh_of_2_13((1, 1), (0, 0)), *placements)
    with pytest.raises(SleuthError, match=r"^w is sharded by tensor parallelism .*; FSDP and HSDP can be merged$"):
        assembled([entry])


def test_plain_row_shards_are_joined_and_plain_copies_are_taken_once() -> None:
    assert torch.equal(assembled(VALUES.split(3)), VALUES)
    assert torch.equal(assembled([VALUES, VALUES, VALUES]), VALUES)
    assert assembled([torch.tensor(4.0)] * 2, ()) == 4.0


@pytest.mark.parametrize("stop", [1, 3, 5, 7])
def test_any_range_of_rows_can_be_read(stop: int) -> None:
    whole = assemble_tensor(VALUES.split(2), (7, 5), "w")
    for start in range(stop):
        assert torch.equal(whole.rows(start, stop), VALUES[start:stop])


def test_parts_that_overlap_or_leave_a_hole_are_refused() -> None:
    top = [dtensor(VALUES[:4], mesh_of_2_13((2,), (0,)), shard(0))]
    for parts in (top, top * 2):
        with pytest.raises(SleuthError, match="do not make up 7 x 5"):
            assembled(parts)


@pytest.mark.parametrize(
    "entries",
    [
        [VALUES[:4], VALUES[4:, :3]],
        [VALUES[:4], VALUES[4:].float()],
        [VALUES[:4], dtensor(VALUES[4:], mesh_of_2_13((2,), (1,)), shard(0))],
        [VALUES.to_sparse()],
        [dtensor(VALUES, mesh_of_2_13((1,), (0,)))],
        [dtensor(VALUES, inert(Inert), shard(0))],
    ],
)
def test_states_that_torch_never_writes_are_reported_in_one_line(entries: list) -> None:
    with pytest.raises(SleuthError, match=r"^w was not saved as torch saves sharded tensors$"):
        assembled(entries)


def test_a_state_is_a_dictionary_or_a_pair_with_slots() -> None:
    assert fields_of({"a": 1}) == fields_of((None, {"a": 1})) == fields_of(({}, {"a": 1})) == {"a": 1}
    with pytest.raises(TypeError):
        fields_of((1, 2))
