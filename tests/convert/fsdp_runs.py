"""Real FSDP processes on the CPU that save shards as verl does: one file for each rank, by torch.save."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from small_models import make_model, write_companions

WAYS = ("fsdp1", "fsdp1_mesh", "fsdp2")
HYBRID_WAYS = ("hsdp1", "hsdp2")


def ways_of(ranks: int) -> tuple[str, ...]:
    """Ways to shard a model over a number of ranks."""
    return WAYS + HYBRID_WAYS if ranks == 4 else WAYS


def run_fsdp(folder: Path, ranks: int, families: Sequence[str]) -> None:
    """Writes FOLDER/WAY/FAMILY: an actor folder for each way of sharding and each family."""
    mp.spawn(_rank, (ranks, folder, families), nprocs=ranks)


def _rank(rank: int, ranks: int, folder: Path, families: Sequence[str]) -> None:
    warnings.simplefilter("ignore")  # FSDP1 is deprecated, and what it wrote is what is to be read
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=ranks)
    for way in ways_of(ranks):
        for family in families:
            _save(folder / way / family, family, _sharded_state(way, family, ranks), rank, ranks)
    dist.barrier()
    dist.destroy_process_group()


def _sharded_state(way: str, family: str, ranks: int) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = None
    if way in HYBRID_WAYS:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ddp", "fsdp"))
    elif way != "fsdp1":
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("fsdp",))
    return _fsdp2_state(family, mesh) if way.endswith("2") else _fsdp1_state(family, mesh, hybrid=way in HYBRID_WAYS)


def _fsdp1_state(family: str, mesh: Any, *, hybrid: bool) -> dict[str, Any]:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, StateDictType
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = make_model(family)
    sharded = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({type(model.model.layers[0])}),
        sharding_strategy=ShardingStrategy.HYBRID_SHARD if hybrid else ShardingStrategy.FULL_SHARD,
        device_id=torch.device("cpu"),
        device_mesh=mesh,
    )
    with FullyShardedDataParallel.state_dict_type(sharded, StateDictType.SHARDED_STATE_DICT):
        return sharded.state_dict()


def _fsdp2_state(family: str, mesh: Any) -> dict[str, Any]:
    from torch.distributed.fsdp import fully_shard

    model = make_model(family)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model.state_dict()


def _save(folder: Path, family: str, state: Mapping[str, Any], rank: int, ranks: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state, folder / f"model_world_size_{ranks}_rank_{rank}.pt")
    torch.save({"state": {}}, folder / f"optim_world_size_{ranks}_rank_{rank}.pt")
    torch.save({"rng": rank}, folder / f"extra_state_world_size_{ranks}_rank_{rank}.pt")
    if rank == 0:
        (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
        write_companions(make_model(family), folder / "huggingface")


def move_to_gpu(path: Path) -> None:
    """Rewrites a file as if saved by a rank with a GPU: all tensors and devices are cuda:0."""
    reader = torch._C.PyTorchFileReader(str(path))
    records = {name: reader.get_record(name) for name in reader.get_all_records()}
    records["data.pkl"] = records["data.pkl"].replace(pickled("cpu"), pickled("cuda:0"))
    assert pickled("cuda:0") in records["data.pkl"]
    writer = torch._C.PyTorchFileWriter(str(path))
    for name, record in records.items():
        if name not in ("version", "byteorder", ".data/serialization_id"):  # the writer adds these itself
            writer.write_record(name, record, len(record))
    writer.write_end_of_file()


def pickled(text: str) -> bytes:
    """A string in the pickle protocol of torch.save."""
    return b"X" + len(text).to_bytes(4, "little") + text.encode()
