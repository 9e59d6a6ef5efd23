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
from starlette.responses import JSONResponse
from test_pool import CONTEXT, asked, learner, moved, pool_of, sampled, servers  # noqa: F401
from test_weights_from_memory import require_equal
from transformers import PreTrainedModel

from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.remote.pool import PoolLimits, from_memory
from sleuth.engines.remote.published import checksum, publish, published_in_memory
from sleuth.engines.remote.server import discover_server
from sleuth.engines.remote.weight_transfer import GroupError, NcclGroup
from sleuth.types import SleuthError


@pytest.fixture(autouse=True)
def by_gloo() -> Iterator[None]:
    with no_card():
        yield


def test_two_servers_take_the_weights_of_each_step_and_no_file_is_written(
    servers,  # noqa: F811
    make_model: Callable[..., PreTrainedModel],
    tokenizer,
    words,
    tmp_path: Path,
) -> None:
    model = make_model(tied=True)  # the servers' are untied
    pair = servers("vllm", "vllm", transfers="broadcast")
    with pool_of(pair, model, tokenizer, tmp_path / "weights", published=False) as engine:
        for version in (1, 2):
            moved(model)
            engine.publish(version)
            for server in pair:
                require_equal(server, model)
                assert server.engine.label.startswith(f"{version:06d}-")
                assert not server.engine.paused
            written = asked(engine, sampled(words, temperature=0.0))
            here = asked(LocalEngine(model, tokenizer, slots=8, context=CONTEXT), sampled(words, temperature=0.0))
            assert [turn.tokens for turn in written] == [turn.tokens for turn in here]
        assert engine.said == []
    assert not (tmp_path / "weights").exists()


def test_a_restarted_server_takes_the_weights_by_broadcast_again(
    servers,  # noqa: F811
    learner,  # noqa: F811
    tokenizer,
    words,
    tmp_path: Path,
) -> None:
    moved(learner)
    [server] = servers("vllm", transfers="broadcast")
    with pool_of([server], learner, tokenizer, tmp_path / "weights") as engine:
        server.fault(forget=0.3)
        asked(engine, sampled(words, temperature=0.0, groups=1))
        assert engine.figures()["servers_reloaded"] == 1
    require_equal(server, learner)
    assert not (tmp_path / "weights").exists()


@pytest.mark.parametrize(
    ("sleeps", "lag", "expected"), [(False, 0, "by broadcast"), (False, 1, None), (True, 0, "from memory")]
)
def test_weights_that_may_change_while_a_server_loads_go_through_the_folder(
    servers,  # noqa: F811
    learner,  # noqa: F811
    tokenizer,
    sleeps: bool,
    lag: int,
    expected: str | None,
) -> None:
    [server] = servers("vllm", transfers="broadcast")
    found = discover_server(server.url, tokenizer=tokenizer, eos_ids=server.engine.eos_ids)
    limits = PoolLimits(requests_at_once=1, seconds=1, unavailable_timeout=1, sleeps=sleeps, max_policy_lag=lag)
    assert from_memory([found], learner, limits) == expected
    assert found.as_json()["broadcast"]


def test_servers_of_which_one_takes_no_broadcast_get_the_folder(
    servers,  # noqa: F811
    learner,  # noqa: F811
    tokenizer,
    tmp_path: Path,
) -> None:
    moved(learner)
    mixed = [*servers("vllm", transfers="broadcast"), *servers("vllm", "sglang")]
    with pool_of(mixed, learner, tokenizer, tmp_path) as engine:
        assert engine.said == []
        assert (tmp_path / engine._weight_sync.published.label).exists()
    for server in mixed:
        require_equal(server, learner)


@pytest.mark.parametrize("path", ["/init_weight_transfer_engine", "/start_weight_update", "/update_weights"])
def test_a_server_that_refuses_a_step_of_the_broadcast_gets_the_folder_and_one_line_says_why(
    servers,  # noqa: F811
    learner,  # noqa: F811
    tokenizer,
    tmp_path: Path,
    path: str,
) -> None:
    moved(learner)
    refuses = JSONResponse({"error": "nccl_unique_id_b64: not today"}, 500)
    [server] = servers("vllm", transfers="broadcast", instead={path: refuses})
    with pool_of([server], learner, tokenizer, tmp_path) as engine:
        [line] = engine.said
    assert line == (
        f"{server.url} takes no weights by broadcast (refused with 500: nccl_unique_id_b64: not today): "
        f"weights go through the folder {tmp_path}"
    )
    require_equal(server, learner)
    assert not server.engine.paused


def test_the_checksum_is_of_all_weights_however_late_it_is_taken(
    learner,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Saving takes the weights out of the dict that it is given, while another thread hashes them."""
    in_memory, saved, save = published_in_memory(learner, tmp_path, 1), Event(), learner.save_pretrained

    def saving(folder: Path, **how: Any) -> None:
        save(folder, **how)
        saved.set()

    def hashed_late(state: Mapping[str, torch.Tensor]) -> str:
        assert saved.wait(60)
        return checksum(state)

    monkeypatch.setattr(learner, "save_pretrained", saving)
    monkeypatch.setattr("sleuth.engines.remote.published.checksum", hashed_late)
    assert publish(learner, tmp_path, 1) == in_memory


def test_a_server_that_is_lost_during_the_broadcast_gets_the_folder_when_it_comes_back(
    servers,  # noqa: F811
    learner,  # noqa: F811
    tokenizer,
    words,
    tmp_path: Path,
) -> None:
    moved(learner)
    [server] = servers("vllm", transfers="broadcast", instead={"/update_weights": TruncatedResponse(JSONResponse({}))})
    with pool_of([server], learner, tokenizer, tmp_path, published=False) as engine:
        engine.publish(1)
        first, second = engine.said
        assert ", while it took weights by broadcast: weights go through the folder" in first
        assert second.startswith("without new weights: ")
        asked(engine, sampled(words, temperature=0.0, groups=1))
        assert engine.figures()["servers_reloaded"] == 1
    require_equal(server, learner)


def test_wrong_weights_by_broadcast_are_detected_at_the_first_completion(
    servers,  # noqa: F811
    learner,  # noqa: F811
    tokenizer,
    tmp_path: Path,
) -> None:
    [server] = servers("vllm", transfers="broadcast")
    with pool_of([server], learner, tokenizer, tmp_path) as engine:
        server.fault(stale=True)
        moved(learner)
        with pytest.raises(SleuthError, match=r"says that it has the weights 000002-.* and writes with others"):
            engine.publish(2)


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


def test_nccl_is_called_as_vllm_expects_it() -> None:
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


def test_an_error_of_nccl_names_the_call() -> None:
    with nccl(FakeNccl("ncclCommInitRank")) as group, pytest.raises(GroupError, match="ncclCommInitRank: unhandled"):
        group.join(2)
    with nccl(FakeNccl()) as group, pytest.raises(GroupError, match=r"no weights of torch\.complex64"):
        group.broadcast([torch.zeros(1, dtype=torch.complex64)])
