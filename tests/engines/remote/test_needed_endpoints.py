"""A server that cannot be given weights is refused before the run, with what to start instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from emulator.model_server import ModelServer

from sleuth.engines.remote.server import discover_servers
from sleuth.learn.models import load_model
from sleuth.render import find_eos_ids
from sleuth.types import SleuthError

BASE = Path(__file__).parents[3] / "models" / "tiny-base"
DEV_MODE = ("/weight_info", "/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume")


@pytest.mark.parametrize(
    ("kind", "lacks", "problem"),
    [
        ("vLLM", DEV_MODE, "has no /weight_info, .* with VLLM_SERVER_DEV_MODE=1"),
        ("vLLM", ("/collective_rpc",), "has no /collective_rpc, by which .* or a newer vLLM"),
        ("SGLang", ("/pause_generation",), "has no /pause_generation, by which .* start a newer SGLang"),
        ("SGLang", (), None),
        ("vLLM", (), None),
    ],
)
def test_a_server_without_an_endpoint_is_one_line(kind, lacks: tuple[str, ...], problem: str | None) -> None:
    model, tokenizer = load_model(str(BASE), dtype="float32", device="cpu")
    with ModelServer(model=model, tokenizer=tokenizer, name=str(BASE), lacks=lacks).listening(kind) as server:
        asked = {"tokenizer": tokenizer, "eos_ids": find_eos_ids(model.generation_config, tokenizer)}
        limits = {"context": 256, "temperature": 1.0, "log": lambda line: None}
        if problem is None:
            assert len(discover_servers([server.url], **asked, **limits)) == 1
            return
        with pytest.raises(SleuthError, match=problem) as caught:
            discover_servers([server.url], **asked, **limits)
    assert str(caught.value).startswith(f"engine.urls: {server.url}: ")
    assert "\n" not in str(caught.value)
