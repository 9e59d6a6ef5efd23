"""A server that shares the learner's card takes weights from memory, and from the folder where it cannot."""

from __future__ import annotations

import base64
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import httpx
import pytest
import torch
from emulated_server import KINDS, EmulatedServer
from starlette.responses import JSONResponse
from test_pool import CONTEXT, asked, learner, moved, pool_of, sampled, servers  # noqa: F401
from transformers import PreTrainedModel

from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.remote.shared_memory import SharedWeights, shared_weights
from sleuth.serve.emulator.faults import TruncatedResponse
from sleuth.serve.emulator.sglang import SglangEmulator
from sleuth.types import SleuthError

SESSIONS = ("/begin_weight_update", "/end_weight_update")
NOT_FOUND = JSONResponse({"detail": "Not Found"}, 404)
ALLOWED_BY_SGLANG = {
    ("torch", "Size"),
    ("torch", "bfloat16"),
    ("torch", "float32"),
    ("torch", "Tensor"),
    ("torch.storage", "TypedStorage"),
    ("torch.multiprocessing.reductions", "rebuild_cuda_tensor"),
}
"""Of `SafeUnpickler.ALLOWED_GLOBALS` in python/sglang/srt/utils/common.py, 0.5.23."""


@pytest.mark.parametrize("kind", KINDS)
def test_three_rounds_of_publish_play_sleep_and_update_write_no_file(
    servers,  # noqa: F811
    make_model: Callable[..., object],
    tokenizer,
    words,
    tmp_path: Path,
    kind: str,
) -> None:
    model = make_model(tied=True)  # the server's is untied
    [server] = servers(kind, transfers="shared")
    with pool_of([server], model, tokenizer, tmp_path / "weights", sleeps=True, published=False) as engine:
        for version in (1, 2, 3):
            moved(model)
            engine.publish(version)
            require_equal(server, model)
            written = asked(engine, sampled(words, temperature=0.0))
            here = asked(LocalEngine(model, tokenizer, slots=8, context=CONTEXT), sampled(words, temperature=0.0))
            assert [turn.tokens for turn in written] == [turn.tokens for turn in here]
            assert {turn.policy_version for turn in written} == {version}
            engine.sleep()
            assert server.engine.asleep == {"weights", "kv_cache"}
        assert engine.said == []
    assert not (tmp_path / "weights").exists()
    assert server.engine.label.startswith("000003-")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("vllm", "(refused with 500: Weight transfer not configured"),
        ("sglang", "(it has device cpu, tp_size 1, pp_size 1, dp_size 1, not device host, tp_size 1,"),
    ],
)
def test_a_server_that_was_started_without_transfer_gets_the_folder_and_one_line_says_why(
    servers,  # noqa: F811
    learner,  # noqa: F811
    tokenizer,
    words,
    tmp_path: Path,
    kind: str,
    reason: str,
) -> None:
    with pool_of(servers(kind), learner, tokenizer, tmp_path, sleeps=True) as engine:
        engine.sleep()
        moved(learner)
        engine.publish(2)
        written = asked(engine, sampled(words, temperature=0.0))
        [line] = engine.said
    assert f"takes no weights from memory {reason}" in line
    assert f"weights go through the folder {tmp_path}" in line
    here = asked(LocalEngine(learner, tokenizer, slots=8, context=CONTEXT), sampled(words, temperature=0.0))
    assert [turn.tokens for turn in written] == [turn.tokens for turn in here]
    assert (tmp_path / engine._weight_sync.published.label / "model.safetensors").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_restarted_server_gets_the_weights_from_memory_again(
    servers,  # noqa: F811
    learner,  # noqa: F811
    tokenizer,
    words,
    tmp_path: Path,
    kind: str,
) -> None:
    moved(learner)
    [server] = servers(kind, transfers="shared")
    with pool_of([server], learner, tokenizer, tmp_path / "weights", sleeps=True) as engine:
        server.fault(forget=0.3)
        written = asked(engine, sampled(words, temperature=0.0))
        assert engine.figures()["servers_reloaded"] == 1
    here = asked(LocalEngine(learner, tokenizer, slots=8, context=CONTEXT), sampled(words, temperature=0.0))
    assert [turn.tokens for turn in written] == [turn.tokens for turn in here]
    assert not (tmp_path / "weights").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_weights_from_memory_are_detected_at_the_first_completion(
    servers,  # noqa: F811
    learner,  # noqa: F811
    tokenizer,
    tmp_path: Path,
    kind: str,
) -> None:
    [server] = servers(kind, transfers="shared")
    with pool_of([server], learner, tokenizer, tmp_path, sleeps=True) as engine:
        server.fault(stale=True)
        moved(learner)
        with pytest.raises(SleuthError, match=r"says that it has the weights 000002-.* and writes with others"):
            engine.publish(2)


def require_equal(server: EmulatedServer, model: PreTrainedModel) -> None:
    """Bit by bit."""
    served = server.engine._model.state_dict()
    assert all(torch.equal(served[name], weight) for name, weight in model.state_dict().items())


class Runs:
    """A pickle of it makes a folder where it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.mkdir, (str(self.folder),)


def test_the_emulated_server_runs_no_code_of_a_pickle_and_changes_nothing(
    servers,  # noqa: F811
    learner,  # noqa: F811
    tmp_path: Path,
) -> None:
    [server] = servers("vllm", transfers="shared")
    before = {name: weight.clone() for name, weight in server.engine._model.state_dict().items()}

    def post(path: str, body: dict[str, object] | None = None) -> httpx.Response:
        return httpx.post(f"{server.url}{path}", json=body or {})

    moved(learner)
    with shared_weights(learner) as shared:
        info = shared.update_info()
        evil = info | {
            "ipc_handles_pickled": base64.b64encode(
                pickle.dumps([Runs(tmp_path / "made")] * len(info["names"]))
            ).decode()
        }
        assert post("/update_weights", {"update_info": info}).status_code == 500  # not started
        post("/start_weight_update")
        for bad in (evil, info | {"names": info["names"][:-1]}, info | {"dtype_names": ["save"] * len(info["names"])}):
            answer = post("/update_weights", {"update_info": bad})
            assert (answer.status_code, "cannot be read" in answer.text) == (500, True)
        assert post("/update_weights", {"update_info": info}).is_success
    assert not (tmp_path / "made").exists()
    require_equal(server, learner)
    assert any(not torch.equal(before[name], weight) for name, weight in learner.state_dict().items())


def test_an_emulated_sglang_refuses_what_it_cannot_read_and_changes_nothing(
    servers,  # noqa: F811
    learner,  # noqa: F811
    tmp_path: Path,
) -> None:
    [server] = servers("sglang", transfers="shared")
    before = {name: weight.clone() for name, weight in server.engine._model.state_dict().items()}

    def post(path: str, body: dict[str, object] | None = None) -> httpx.Response:
        return httpx.post(f"{server.url}{path}", json=body or {})

    def update(*payloads: str) -> httpx.Response:
        body = {"serialized_named_tensors": list(payloads), "weight_version": "mine"}
        return post("/update_weights_from_tensor", body)

    def pickled(value: object) -> str:
        return base64.b64encode(pickle.dumps(value)).decode()

    moved(learner)
    with shared_weights(learner) as shared:
        [good] = shared.serialized_named_tensors()
        [name, handle, dtype, shape], *others = pickle.loads(base64.b64decode(good))
        assert "must run between" in update(good).text
        assert post("/end_weight_update").status_code == 400
        assert post("/begin_weight_update").is_success
        assert "already open" in post("/begin_weight_update").text
        malformed = [
            [],
            [good, good],
            ["!"],
            [good[: len(good) // 2]],
            [pickled([Runs(tmp_path / "made")])],
            [pickled([(name, Runs(tmp_path / "made"), dtype, shape), *others])],
            [pickled([(name, torch.zeros(2), dtype, shape)])],
            [pickled({"flattened_tensor": handle, "metadata": []})],
            [pickled([(name, ("../etc/passwd", 0, 4), dtype, shape)])],
            [pickled([(name, (handle[0], 0, 2**63), dtype, shape)])],
            [pickled([(name, (handle[0], -1, 4), dtype, shape)])],
            [pickled([(name, handle, "save", shape), *others])],
            [pickled([(name, handle, dtype, [7, *shape]), *others])],
        ]
        for payloads in malformed:
            answer = update(*payloads)
            assert answer.status_code == 400
            assert answer.json()["message"].startswith("serialized_named_tensors: cannot be read (")
        assert "lacks" in update(pickled([(name, handle, dtype, shape)])).json()["message"]
        assert server.engine.label == "default"
        assert all(torch.equal(before[name], weight) for name, weight in server.engine._model.state_dict().items())
        assert update(good).is_success
    assert post("/end_weight_update").is_success
    assert not (tmp_path / "made").exists()
    assert server.engine.label == "mine"
    require_equal(server, learner)


@pytest.mark.parametrize(
    ("lacks", "in_session", "reason"),
    [
        ((), False, None),
        ((), True, None),  # a run that was killed left it open
        (SESSIONS, True, None),  # an older version
        (("/update_weights_from_tensor",), False, "(refused with 404: Not Found)"),
    ],
)
def test_an_sglang_takes_weights_from_memory_by_the_endpoints_that_it_has(
    servers,  # noqa: F811
    learner,  # noqa: F811
    tokenizer,
    tmp_path: Path,
    lacks: tuple[str, ...],
    in_session: bool,
    reason: str | None,
) -> None:
    moved(learner)
    with patch.object(SglangEmulator, "_in_session", in_session):
        [server] = servers("sglang", transfers="shared", instead=dict.fromkeys(lacks, NOT_FOUND))
        with pool_of([server], learner, tokenizer, tmp_path / "weights", sleeps=True) as engine:
            engine.sleep()
            engine.publish(2)
            label = engine._weight_sync.published.label
            expected = f"{server.url} takes no weights from memory {reason}: weights go through the folder"
            assert [line.startswith(expected) for line in engine.said] == [True] * (reason is not None)
            folder = tmp_path / "weights" / label
    assert folder.exists() == (reason is not None)
    assert (server.engine.label, server.engine.paused, server.engine.asleep) == (label, False, frozenset())
    if not lacks:  # the session is closed
        assert httpx.post(f"{server.url}/begin_weight_update", json={}).is_success
    require_equal(server, learner)


def test_an_sglang_that_ends_as_it_reads_the_memory_gets_the_folder_when_it_comes_back(
    servers,  # noqa: F811
    learner,  # noqa: F811
    tokenizer,
    words,
    tmp_path: Path,
) -> None:
    [server] = servers(
        "sglang", transfers="shared", instead={"/update_weights_from_tensor": TruncatedResponse(JSONResponse({}))}
    )
    moved(learner)
    with pool_of([server], learner, tokenizer, tmp_path / "weights", sleeps=True, published=False) as engine:
        engine.publish(1)
        first, second = engine.said
        assert f"{server.url} broke off while it wrote (" in first
        assert f", while it took weights from memory: weights go through the folder {tmp_path / 'weights'}" in first
        assert second.startswith(f"without new weights: {server.url} broke off")
        assert not (tmp_path / "weights").exists()
        written = asked(engine, sampled(words, temperature=0.0))
        assert engine.figures()["servers_reloaded"] == 1
        assert (tmp_path / "weights" / engine._weight_sync.published.label).exists()
    here = asked(LocalEngine(learner, tokenizer, slots=8, context=CONTEXT), sampled(words, temperature=0.0))
    assert [turn.tokens for turn in written] == [turn.tokens for turn in here]


def test_weights_on_a_card_are_pickled_for_sglang_as_calls_that_it_allows() -> None:
    weights = {"a": torch.zeros(2, 3, dtype=torch.bfloat16), "b": torch.ones(4)}
    handles = [{"GPU-1": _arguments(weight, at)} for at, weight in enumerate(weights.values())]
    shared = SharedWeights(weights=weights, handles=handles, device="cuda")
    [pickled] = [base64.b64decode(payload) for payload in shared.serialized_named_tensors()]
    reader = ReadAsSglang(io.BytesIO(pickled))
    read = dict(reader.load())
    for at, (name, weight) in enumerate(weights.items()):
        arguments = _arguments(weight, at)
        assert read[name] == (*arguments[:6], "GPU-1", *arguments[7:])
    assert reader.found <= ALLOWED_BY_SGLANG


def _arguments(weight: torch.Tensor, at: int) -> tuple[object, ...]:
    """Those that torch's `reduce_tensor` gives for a tensor of the first card."""
    kind = (type(weight), weight.size(), weight.stride(), 0, torch.storage.TypedStorage, weight.dtype)
    return (*kind, 0, b"handle", weight.nbytes, 512 * at, False, b"counter", at, b"event", True)


class ReadAsSglang(pickle.Unpickler):
    """Notes what a pickle names, and calls nothing for a tensor."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.found: set[tuple[str, str]] = set()

    def find_class(self, module_name: str, global_name: str, /) -> object:
        self.found.add((module_name, global_name))
        if global_name == "rebuild_cuda_tensor":
            return lambda *arguments: arguments
        return super().find_class(module_name, global_name)
