"""A server that shares the learner's card takes weights from memory, and from the folder where it cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import httpx
import pytest
import torch
from emulator.faults import TruncatedResponse
from emulator.no_card import no_card
from emulator.served import KINDS, EmulatedServer
from emulator.sglang import SglangEmulator
from starlette.responses import JSONResponse
from test_pool import CONTEXT, asked, learner, moved, pool_of, sampled, servers  # noqa: F401
from transformers import PreTrainedModel

from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.remote.pool import is_on_card
from sleuth.types import SleuthError

NOT_FOUND = JSONResponse({"detail": "Not Found"}, 404)


@pytest.fixture(autouse=True)
def in_memory() -> Iterator[None]:
    with no_card():
        yield


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
        ("sglang", "(it has device cpu, tp_size 1, pp_size 1, dp_size 1, not device cuda, tp_size 1,"),
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


@pytest.mark.parametrize(
    ("lacks", "in_session", "reason"),
    [
        ((), False, None),
        ((), True, None),  # a run that was killed left it open
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


def test_a_model_on_a_cpu_goes_through_the_folder_even_to_servers_that_sleep(
    servers,  # noqa: F811
    learner,  # noqa: F811
    tokenizer,
    tmp_path: Path,
) -> None:
    with patch("sleuth.engines.remote.pool.is_on_card", is_on_card):
        [server] = servers("vllm", transfers="shared")
        with pool_of([server], learner, tokenizer, tmp_path, sleeps=True) as engine:
            assert engine.said == []
            assert (tmp_path / engine._weight_sync.published.label).exists()
