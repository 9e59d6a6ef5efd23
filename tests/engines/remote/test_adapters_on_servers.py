"""Servers take the adapters of a learner alone where they can, else its weights with the adapters merged."""

from __future__ import annotations

import pytest
import torch
from emulator.no_card import no_card
from safetensors.torch import load_file
from transformers import PreTrainedModel

from sleuth.engines.remote.published import publish, published_in_memory
from sleuth.engines.remote.weight_sync import EngineReplica
from sleuth.learn.adapters import Adapters, adapter_state, add_adapters, base_state, merged_state
from sleuth.learn.master_weights import WeightSource

pytest.importorskip("peft")
KINDS = ("vllm", "sglang")


@pytest.fixture
def adapted(make_model) -> PreTrainedModel:
    """A learner whose adapters have learned something."""
    model = make_model()
    add_adapters(model, Adapters(rank=4, alpha=8.0, targets=("q_proj", "v_proj", "down_proj")), seed=0)
    learn(model)
    return model


def learn(model: PreTrainedModel) -> None:
    """An update of the adapters."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".lora_" in name:
                weight.add_(torch.full_like(weight, 0.02))


def held(server) -> dict[str, torch.Tensor]:
    return server.engine._model.state_dict()


@pytest.mark.parametrize("max_rank", [None, 8])
def test_a_server_has_base_plus_adapters_in_either_way(servers, pools, adapted, max_rank):
    members = servers(*KINDS, max_rank=max_rank)
    engine = pools.open(members, learner=adapted, published=False)
    for version in (1, 2, 3):
        learn(adapted)
        engine.publish(version)
        for server in members:
            for name, weight in merged_state(adapted).items():
                assert torch.allclose(held(server)[name], weight, atol=1e-5), name
        turns = pools.require_learners_turns(engine, adapted)
        assert {turn.policy_version for turn in turns} == {version}
    assert all(len(server.engine.adapters) == (0 if max_rank is None else 1) for server in members)


def test_after_the_first_step_only_adapters_are_written(servers, pools, adapted):
    engine = pools.open(servers(*KINDS, max_rank=8), learner=adapted)
    for version in (2, 3):
        learn(adapted)
        engine.publish(version)
    newest, before = sorted(pools.folder.iterdir(), reverse=True)
    for folder in (newest, before):
        files = {file.relative_to(folder).as_posix() for file in folder.rglob("*.safetensors")}
        assert files == {"adapter/adapter_model.safetensors"}
    written = load_file(newest / "adapter/adapter_model.safetensors")
    assert all(torch.equal(written[name], weight) for name, weight in adapter_state(adapted).items())


@pytest.mark.parametrize(
    ("max_rank", "why"), [(None, "LoRA is not enabled"), (2, "rank 4 is greater than max_lora_rank")]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_line_says_why_a_server_gets_whole_weights(servers, pools, adapted, kind, max_rank, why):
    engine = pools.open(servers(kind, max_rank=max_rank), learner=adapted)
    [line] = [line for line in pools.lines if "as adapters" in line]
    assert why in line
    assert line.endswith(f"weights go through the folder {pools.folder}")
    learn(adapted)
    engine.publish(2)
    pools.require_learners_turns(engine, adapted)


@pytest.mark.parametrize("lag", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_servers_get_merged_weights_where_turns_are_under_way_beside_updates(servers, pools, adapted, kind, lag):
    [server] = servers(kind, max_rank=8)
    engine = pools.open([server], learner=adapted, max_policy_lag=lag)
    learn(adapted)
    engine.publish(2)
    assert not server.engine.adapters
    assert all(torch.allclose(held(server)[name], weight) for name, weight in merged_state(adapted).items())
    pools.require_learners_turns(engine, adapted)
    assert pools.lines == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_restarts_gets_base_and_adapters_again(servers, pools, adapted, kind):
    [server] = servers(kind, max_rank=8)
    for weight in server.engine._initial_state.values():  # it was started with another model than the stage begins with
        weight.mul_(1.1)
    engine = pools.open([server], learner=adapted)
    server.fault(forget=0.0)
    pools.require_learners_turns(engine, adapted)
    assert engine.figures()["servers_reloaded"] == 1
    server.fault(forget=0.0)
    learn(adapted)
    engine.publish(2)
    pools.require_learners_turns(engine, adapted)


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_that_a_server_refuses_for_want_of_its_adapters_is_sampled_again(
    servers, pools, adapted, kind, monkeypatch
):
    [server] = servers(kind, max_rank=8)
    engine = pools.open([server], learner=adapted)
    trusted = property(lambda replica: not replica.may_have_restarted)  # as while other turns are in flight
    monkeypatch.setattr(EngineReplica, "is_same_process", trusted)
    server.fault(forget=0.0)
    pools.require_learners_turns(engine, adapted)
    assert engine.figures()["turns_redrawn"] > 0


def test_vllms_of_other_cards_take_merged_weights_by_broadcast(servers, pools, adapted):
    with no_card():
        engine = pools.open(servers("vllm", broadcast=True), learner=adapted)
        learn(adapted)
        engine.publish(2)
        pools.require_learners_turns(engine, adapted)
    assert not pools.folder.exists()


def test_the_same_weights_have_the_same_label_however_they_are_given(adapted, tmp_path):
    source = WeightSource(adapted)
    merged, adapters, base = (publish(source, tmp_path, 1, part) for part in ("merged", "adapters", "base"))
    assert merged.label == adapters.label == published_in_memory(source, tmp_path, 1).label != base.label
    assert load_file(base.path / "model.safetensors").keys() == base_state(adapted).keys()
