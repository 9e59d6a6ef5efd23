"""What is found out about a server before it is asked anything."""

from __future__ import annotations

import pytest
from emulator.model_server import Kind, ModelServer

from sleuth.engines.remote.server import discover_servers, find_server
from sleuth.types import SleuthError


@pytest.fixture
def server(model, tokenizer) -> ModelServer:
    return ModelServer(model=model, tokenizer=tokenizer, name="/models/step-000100")


def find(server: ModelServer, kind: Kind, checkpoint: str = "step-000100", served_as: str | None = None):
    with server.listening(kind):
        return find_server(
            f"{server.url}/v1/", checkpoint, served_as=served_as, tokenizer=server.tokenizer, eos_ids=server.eos_ids
        )


@pytest.mark.parametrize(("kind", "version", "context"), [("SGLang", "0.5.23", 506), ("vLLM", "0.32.0", 512)])
def test_a_server_is_known_by_its_endpoints(server, kind, version, context):
    place, notes = find(server, kind)
    expected = {"url": server.url, "kind": kind, "version": version, "model": server.name, "context": context}
    assert place.as_json() == expected
    assert str(place) == (f"{kind} {version} at {server.url} serves '/models/step-000100'")
    assert notes == ["the server's '/models/step-000100' is taken for step-000100 by the last part of its name"]


def test_another_model_is_refused_with_what_would_be_right(server):
    with pytest.raises(SleuthError) as caught:
        find(server, "vLLM", checkpoint="runs/mine/checkpoints/step-000200")
    assert str(caught.value) == (
        f"--engine {server.url}: serves '/models/step-000100', and the checkpoint is runs/mine/checkpoints/"
        "step-000200; start the server with that, or say --served-as NAME if it is the same model under that name"
    )


def test_local_folders_of_equal_last_name_are_distinguished(server, tmp_path):
    for run in ("a", "b"):
        (tmp_path / run / "step-000100").mkdir(parents=True)
    server.name = str(tmp_path / "a" / "step-000100")
    assert find(server, "SGLang", checkpoint=server.name)[1] == []
    with pytest.raises(SleuthError, match="and the checkpoint is"):
        find(server, "SGLang", checkpoint=str(tmp_path / "b" / "step-000100"))


def test_a_model_under_another_name_is_taken_if_it_is_named(server):
    place, notes = find(server, "vLLM", checkpoint="mine", served_as="/models/step-000100")
    assert (place.model, notes) == ("/models/step-000100", [])


@pytest.mark.parametrize(
    ("changed", "asked", "problem"),
    [
        ({}, {"served_as": "policy"}, "and nothing as 'policy'; give --served-as one of these names"),
        ({"returns_ids": False}, {}, "no token ids; serve the model with SGLang or vLLM"),
        ({"lacks": ["/v1/models"]}, {}, "neither SGLang's /model_info nor vLLM's /v1/models is there"),
        ({"lacks": ["/v1/completions"]}, {}, "/v1/completions refused with 404: Not Found"),
        ({"lacks": ["/tokenize"]}, {}, None),
    ],
)
def test_a_server_that_cannot_be_asked_is_refused(server, changed, asked, problem):
    for name, value in changed.items():
        setattr(server, name, value)
    if problem is None:
        assert find(server, "vLLM")[0].kind == "vLLM"
        return
    with pytest.raises(SleuthError, match=problem):
        find(server, "vLLM", **asked)


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
def test_a_server_that_cannot_be_given_weights_is_refused_before_the_run(server, kind, lacks, problem):
    server.lacks = lacks
    how = {"tokenizer": server.tokenizer, "eos_ids": server.eos_ids, "context": 256, "temperature": 1.0}
    with server.listening(kind):
        if problem is None:
            assert len(discover_servers([server.url], log=lambda line: None, **how)) == 1
            return
        with pytest.raises(SleuthError, match=problem) as caught:
            discover_servers([server.url], log=lambda line: None, **how)
    assert str(caught.value).startswith(f"engine.urls: {server.url}: ")
    assert "\n" not in str(caught.value)
