"""A vLLM on another card takes weights by broadcast, and from the folder where it cannot. `emulator.no_card` does the
collectives, by gloo."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from emulator.faults import TruncatedResponse
from emulator.no_card import no_card
from pools import move, require_equal
from starlette.responses import JSONResponse

from sleuth.engines.remote.pool import PoolLimits, is_on_card, transfer_to
from sleuth.engines.remote.published import hashes_of, publish, published_in_memory
from sleuth.engines.remote.server import discover_server
from sleuth.engines.remote.weight_transfer import GroupError, NcclGroup
from sleuth.learn.master_weights import WeightSource


@pytest.fixture(autouse=True)
def as_on_a_card() -> Iterator[None]:
    with no_card():
        yield


def test_servers_take_the_weights_of_each_step_and_no_file_is_written(servers, pools, make_model):
    model = make_model(tied=True)  # the servers' are untied
    members = servers("vllm", "vllm", broadcast=True)
    engine = pools.open(members, learner=model, published=False)
    for version in (1, 2, 3):
        move(model)
        engine.publish(version)
        for server in members:
            require_equal(server, model)
            assert server.engine.label.startswith(f"{version:06d}-")
            assert not server.engine.paused
        turns = pools.require_learners_turns(engine, model)
        assert {turn.policy_version for turn in turns} == {version}
    assert pools.lines == []
    assert not pools.folder.exists()


def test_a_restarted_server_takes_the_weights_without_a_folder_again(servers, pools, learner):
    move(learner)
    [server] = servers("vllm", broadcast=True)
    engine = pools.open([server])
    server.fault(forget=0.3)
    pools.require_learners_turns(engine)
    assert engine.figures()["servers_reloaded"] == 1
    require_equal(server, learner)
    assert not pools.folder.exists()


def test_a_server_that_loses_weights_which_only_all_ranks_can_read_is_one_line_each_update(
    servers, pools, learner, monkeypatch
):
    lost, other = servers("vllm", "vllm", broadcast=True)
    engine = pools.open([lost, other])
    for version in (2, 3):
        move(learner)
        with monkeypatch.context() as patched:
            engine.publish(version)
            patched.setattr(WeightSource, "at_hand", False)  # as between the updates of several ranks
            lost.fault(forget=0.0)
            for _ in range(2):
                pools.require_learners_turns(engine)
            line = f"{lost.url} has lost its weights, and waits for those of the next update"
            assert pools.lines == [line] * (version - 1)
    assert not pools.folder.exists()


# -- the folder instead ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sleeps", "lag", "expected"), [(False, 0, "by broadcast"), (False, 1, None), (True, 0, None)])
def test_weights_that_may_change_while_a_server_loads_go_through_the_folder(
    servers, learner, tokenizer, sleeps, lag, expected
):
    [server] = servers("vllm", broadcast=True)
    found = discover_server(server.url, tokenizer=tokenizer, eos_ids=server.engine.eos_ids)
    limits = PoolLimits(requests_at_once=1, seconds=1, unavailable_timeout=1, sleeps=sleeps, max_policy_lag=lag)
    assert transfer_to([found], learner, limits) == expected
    assert found.as_json()["broadcast"]


@pytest.mark.parametrize("mixed", [True, False])
def test_servers_of_which_one_takes_no_broadcast_and_a_learner_on_a_cpu_use_the_folder(servers, pools, learner, mixed):
    move(learner)
    members = servers("vllm", broadcast=True) + (servers("vllm", "sglang") if mixed else [])
    with nullcontext() if mixed else patch("sleuth.engines.remote.pool.is_on_card", is_on_card):
        engine = pools.open(members)
    assert pools.lines == []
    assert engine._weight_sync.published.path.exists()
    for server in members:
        require_equal(server, learner)


@pytest.mark.parametrize("path", ["/init_weight_transfer_engine", "/start_weight_update", "/update_weights"])
def test_a_server_that_takes_none_gets_the_folder_and_one_line_says_why(servers, pools, learner, path):
    refuses = {path: JSONResponse({"error": "nccl_unique_id_b64: not today"}, 500)}
    [server] = servers("vllm", broadcast=True, instead=refuses)
    engine = pools.open([server])
    move(learner)
    engine.publish(2)
    [line] = pools.lines
    assert line.startswith(
        f"{server.url} takes no weights by broadcast (refused with 500: nccl_unique_id_b64: not today"
    )
    assert line.endswith(f"weights go through the folder {pools.folder}")
    assert (engine._weight_sync.published.path / "model.safetensors").exists()
    pools.require_learners_turns(engine)
    require_equal(server, learner)
    assert not server.engine.paused


def test_a_server_that_is_lost_as_it_takes_weights_gets_the_folder_when_it_comes_back(servers, pools, learner):
    move(learner)
    [server] = servers("vllm", broadcast=True, instead={"/update_weights": TruncatedResponse(JSONResponse({}))})
    engine = pools.open([server], published=False)
    engine.publish(1)
    first, second = pools.lines
    assert first.startswith(f"{server.url} broke off while it wrote (")
    assert first.endswith(f", while it took weights by broadcast: weights go through the folder {pools.folder}")
    assert second.startswith(f"without new weights: {server.url} broke off")
    assert not pools.folder.exists()
    pools.require_learners_turns(engine)
    assert engine.figures()["servers_reloaded"] == 1
    assert engine._weight_sync.published.path.exists()
    require_equal(server, learner)


def test_the_checksum_is_of_all_weights_however_late_it_is_taken(learner, tmp_path, monkeypatch):
    """Saving takes the weights out of the dict that it is given, while another thread hashes them."""
    source, saved, save = WeightSource(learner), Event(), learner.save_pretrained
    in_memory = published_in_memory(source, tmp_path, 1)

    def saving(folder: Path, **how: Any) -> None:
        save(folder, **how)
        saved.set()

    def hashed_late(state: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
        assert saved.wait(60)
        return hashes_of(state)

    monkeypatch.setattr(learner, "save_pretrained", saving)
    monkeypatch.setattr("sleuth.engines.remote.published.hashes_of", hashed_late)
    assert publish(source, tmp_path, 1) == in_memory


class FakeNccl:
    """Notes the calls; those of `fails` fail."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[tuple[object, ...]] = []
        self.fails = fails
        self.ncclGetErrorString = lambda code: b"unhandled system error"

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: object) -> int:
            self.calls.append((name, *(getattr(argument, "value", argument) for argument in arguments)))
            if name == "ncclCommInitRank":
                arguments[0]._obj.value = 7
            return 2 if name == self.fails else 0

        return call


@contextmanager
def nccl(library: FakeNccl) -> Iterator[NcclGroup]:
    stream = SimpleNamespace(cuda_stream=5, synchronize=lambda: None)
    with (
        patch.object(ctypes, "CDLL", return_value=library),
        patch.multiple(torch.cuda, device=nullcontext, synchronize=lambda: None, current_stream=lambda: stream),
    ):
        yield NcclGroup(torch.device("cpu"))


def test_nccl_is_called_as_vllm_expects_it():
    library = FakeNccl()
    weights = [torch.zeros(3, 2, dtype=torch.bfloat16), torch.zeros(4)]
    with nccl(library) as group:
        assert len(group.unique_id) == 128
        group.join(3)
        group.broadcast(weights)
        group.abort()
        group.abort()  # once is enough
    unique, join, warm_up, *sent, abort = library.calls
    assert (unique[0], join[0], join[2], join[4]) == ("ncclGetUniqueId", "ncclCommInitRank", 3, 0)
    assert bytes(join[3]) == group.unique_id
    assert (warm_up[0], *warm_up[3:]) == ("ncclAllReduce", 1, 7, 0, 7, 5)  # one float32, summed
    first, second = (weight.data_ptr() for weight in weights)
    assert sent == [
        ("ncclBroadcast", first, first, 6, 9, 0, 7, 5),  # bfloat16
        ("ncclBroadcast", second, second, 4, 7, 0, 7, 5),
    ]
    assert abort == ("ncclCommAbort", 7)


def test_an_error_of_nccl_names_the_call():
    with nccl(FakeNccl("ncclCommInitRank")) as group, pytest.raises(GroupError, match="ncclCommInitRank: unhandled"):
        group.join(2)
    with nccl(FakeNccl()) as group, pytest.raises(GroupError, match=r"no weights of torch\.complex64"):
        group.broadcast([torch.zeros(1, dtype=torch.complex64)])
