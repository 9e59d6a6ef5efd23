"""The endpoints mean what they mean at the servers that they are spoken after."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from emulator.served import KINDS, EmulatedServer, emulated_server, repeat_within_rounding
from sleuth.engines.remote.published import publish
from sleuth.learn.master_weights import WeightSource
from sleuth.learn.models import load_model
from sleuth.types import Completion, Sampling

BASE = Path(__file__).parents[2] / "models" / "tiny-base"
PROMPT = [5, 6, 7]


@pytest.fixture(params=KINDS)
def server(request) -> Iterator[tuple[str, EmulatedServer]]:
    model, tokenizer = load_model(str(BASE), dtype="float32", device="cpu")
    with emulated_server(request.param, model, tokenizer, context=128) as server:
        yield request.param, server


def written(kind: str, server: EmulatedServer, **more: Any) -> dict[str, Any]:
    """What became of a short greedy completion: ids, text, why it ended, and the weights' name where it is told."""
    if kind == "vllm":
        body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "return_token_ids": True} | more
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=30).raise_for_status().json()
        [choice] = answer["choices"]
        return {"ids": choice["token_ids"], "text": choice["text"], "ended": choice["finish_reason"], "weights": None}
    params = {"max_new_tokens": 8, "temperature": 0} | more
    body = {"input_ids": PROMPT, "sampling_params": params}
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=30).raise_for_status().json()
    told = answer["meta_info"]
    ended, weights = told["finish_reason"]["type"], told["weight_version"]
    return {"ids": answer["output_ids"], "text": answer["text"], "ended": ended, "weights": weights}


def load(kind: str, server: EmulatedServer, folder: Path, label: str) -> httpx.Response:
    """As who trains would."""
    if kind == "sglang":
        body = {"model_path": str(folder), "weight_version": label}
        return httpx.post(f"{server.url}/update_weights_from_disk", json=body, timeout=30)
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    answer = httpx.post(f"{server.url}/collective_rpc", json=body, timeout=30)
    if answer.is_success:
        httpx.post(f"{server.url}/update_weight_version", json={"new_version": label}).raise_for_status()
    return answer


def label_of(kind: str, server: EmulatedServer) -> str:
    path = "/weight_info" if kind == "vllm" else "/model_info"
    return httpx.get(f"{server.url}{path}").json()["weight_version"]


def test_weights_that_do_not_fit_are_refused_and_change_nothing_and_others_are_taken_with_their_name(server, tmp_path):
    kind, server = server
    other, _ = load_model(str(BASE), dtype="float32", device="cpu")
    for weight in other.parameters():
        weight.data.mul_(-1)
    published, damaged = publish(WeightSource(other), tmp_path, 7), tmp_path / "damaged"
    shutil.copytree(published.path, damaged)
    (damaged / "weights.json").write_text('{"version": 1, "sha256": "0123456789abcdef"}')
    before = written(kind, server)
    for folder, problem in ((tmp_path / "nothing", "holds no .safetensors file"), (damaged, "have checksum")):
        answer = load(kind, server, folder, "mine")
        assert not answer.is_success
        assert problem in answer.text
    assert (written(kind, server), label_of(kind, server)) == (before, "default")
    assert load(kind, server, published.path, published.label).is_success
    after = written(kind, server)
    assert label_of(kind, server) == published.label == f"000007-{published.sha256[:12]}"
    assert after["ids"] != before["ids"]
    assert after["weights"] in (None, published.label)
    server.fault(forget=0)
    assert (written(kind, server)["ids"], label_of(kind, server)) == (before["ids"], "default")


def test_an_sglang_fills_all_but_a_few_tokens_of_its_context(server):
    """As SGLang 0.5.23 did, with a context of 1024."""
    kind, server = server
    if kind != "sglang":
        return
    assert httpx.get(f"{server.url}/server_info").json()["max_req_input_len"] == 122

    def completed(prompt: int, limit: int) -> int | str:
        params = {"max_new_tokens": limit, "temperature": 0}
        body = {"input_ids": PROMPT[:1] * prompt, "sampling_params": params}
        answer = httpx.post(f"{server.url}/generate", json=body, timeout=30)
        return len(answer.json()["output_ids"]) if answer.is_success else answer.text

    assert completed(104, 22) == completed(104, 23) == completed(104, 24) == 22
    assert completed(121, 7) == completed(121, 5) == 5
    assert "Requested token count exceeds" in str(completed(104, 25))
    assert "Input length (122 tokens) exceeds the maximum allowed length (122 tokens)" in str(completed(122, 1))


def test_a_turn_is_repeated_by_another_server_with_the_same_weights_and_by_none_with_others(tmp_path):
    (model, tokenizer), (same, _), (other, _) = (load_model(str(BASE), dtype="float32", device="cpu") for _ in range(3))
    for weight in other.parameters():
        weight.data.mul_(1.01)
    published, drawn = publish(WeightSource(other), tmp_path, 1), {"temperature": 1.0, "seed": 3}
    with (
        emulated_server("vllm", model, tokenizer, context=128) as one,
        emulated_server("vllm", same, tokenizer, context=128) as two,
    ):
        write = one.engine.write

        async def across_the_border(prompt: Sequence[int], sampling: Sampling) -> tuple[Completion, str]:
            return await write(prompt, replace(sampling, key=(9,)))

        one.engine.write = across_the_border
        by_itself = written("vllm", two, **drawn)
        repeat_within_rounding([one, two])
        first = written("vllm", one, **drawn)
        assert first["ids"] != by_itself["ids"]
        assert written("vllm", two, **drawn) == first
        assert load("vllm", two, published.path, published.label).is_success
        assert written("vllm", two, **drawn)["ids"] != first["ids"]
