"""A vLLM that shares the learner's card takes weights from memory, and from the folder where it cannot."""

from __future__ import annotations

import asyncio
import base64
import pickle
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import torch
from test_pool import CONTEXT, asked, learner, moved, pool_of, sampled, servers  # noqa: F401

from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.remote.shared_memory import shared_weights
from sleuth.types import SleuthError


def test_three_rounds_of_publish_play_sleep_and_update_write_no_file(
    servers,  # noqa: F811
    make_model: Callable[..., object],
    tokenizer,
    words,
    tmp_path: Path,
) -> None:
    model = make_model(tied=True)  # the server's is untied
    [server] = servers("vllm", transfers=True)
    with pool_of([server], model, tokenizer, tmp_path / "weights", sleeps=True, published=False) as engine:
        for version in (1, 2, 3):
            moved(model)
            engine.publish(version)
            written = asked(engine, sampled(words, temperature=0.0))
            here = asked(LocalEngine(model, tokenizer, slots=8, context=CONTEXT), sampled(words, temperature=0.0))
            assert [turn.tokens for turn in written] == [turn.tokens for turn in here]
            assert {turn.policy_version for turn in written} == {version}
            engine.sleep()
            assert server.engine.asleep == {"weights", "kv_cache"}
        assert engine.said == []
    assert not (tmp_path / "weights").exists()
    assert server.engine.label.startswith("000003-")


def test_a_server_that_was_started_without_transfer_gets_the_folder_and_one_line_says_why(
    servers,  # noqa: F811
    learner,  # noqa: F811
    tokenizer,
    words,
    tmp_path: Path,
) -> None:
    with pool_of(servers("vllm"), learner, tokenizer, tmp_path, sleeps=True) as engine:
        engine.sleep()
        moved(learner)
        engine.publish(2)
        written = asked(engine, sampled(words, temperature=0.0))
        [line] = engine.said
    assert "takes no weights from memory (refused with 500: Weight transfer not configured" in line
    assert f"weights go through the folder {tmp_path}" in line
    here = asked(LocalEngine(learner, tokenizer, slots=8, context=CONTEXT), sampled(words, temperature=0.0))
    assert [turn.tokens for turn in written] == [turn.tokens for turn in here]
    assert (tmp_path / engine._weight_sync.published.label / "model.safetensors").exists()


def test_a_restarted_server_gets_the_weights_from_memory_again(
    servers,  # noqa: F811
    learner,  # noqa: F811
    tokenizer,
    words,
    tmp_path: Path,
) -> None:
    moved(learner)
    [server] = servers("vllm", transfers=True)
    with pool_of([server], learner, tokenizer, tmp_path / "weights", sleeps=True) as engine:
        server.fault(forget=0.3)
        written = asked(engine, sampled(words, temperature=0.0))
        assert engine.figures()["servers_reloaded"] == 1
    here = asked(LocalEngine(learner, tokenizer, slots=8, context=CONTEXT), sampled(words, temperature=0.0))
    assert [turn.tokens for turn in written] == [turn.tokens for turn in here]
    assert not (tmp_path / "weights").exists()


def test_wrong_weights_from_memory_are_detected_at_the_first_completion(
    servers,  # noqa: F811
    learner,  # noqa: F811
    tokenizer,
    tmp_path: Path,
) -> None:
    [server] = servers("vllm", transfers=True)
    with pool_of([server], learner, tokenizer, tmp_path, sleeps=True) as engine:
        server.fault(stale=True)
        moved(learner)
        with pytest.raises(SleuthError, match=r"says that it has the weights 000002-.* and writes with others"):
            engine.publish(2)


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
    [server] = servers("vllm", transfers=True)
    before = {name: weight.clone() for name, weight in server.engine._model.state_dict().items()}

    def post(path: str, body: dict[str, object] | None = None) -> httpx.Response:
        return httpx.post(f"{server.url}{path}", json=body or {})

    moved(learner)
    with shared_weights(learner) as info:
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
    after = asyncio.run(_state(server))
    assert all(torch.equal(after[name], weight) for name, weight in learner.state_dict().items())
    assert any(not torch.equal(after[name], weight) for name, weight in before.items())


async def _state(server) -> dict[str, torch.Tensor]:
    return server.engine._model.state_dict()
