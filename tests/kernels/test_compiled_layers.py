"""Which modules compute by the loops, and that a model says the same with them."""

from __future__ import annotations

import pytest
import torch
from tiny_models import SHAPE
from torch import nn
from transformers import GemmaConfig, GemmaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from sleuth.kernels import layers
from sleuth.kernels.layers import compiled_forwards
from sleuth.kernels.matmul import replaced_forwards
from sleuth.learn.adapters import Adapters, add_adapters
from sleuth.learn.batch import collate
from sleuth.learn.logprobs import token_logprobs
from sleuth.learn.prefix_tree import pack

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
COUNTS = {"qwen3": 2 * (2 + 2 + 1) + 1, "qwen2": 2 * (2 + 1) + 1, "llama": 2 * (2 + 1) + 1}
"""Two layers of two norms, in Qwen 3 one of queries and one of keys too, and a block; and the last norm."""


def outcome(model, ids=IDS):
    """Logits, and the gradients of all weights."""
    model.zero_grad()
    logits = model(ids).logits
    logits.float().logsumexp(dim=-1).sum().backward()
    return [logits.detach(), *(weight.grad.clone() for weight in model.parameters() if weight.grad is not None)]


@pytest.fixture
def looped(monkeypatch):
    """Counts the calls of the loops."""
    calls = {"rms_norm": 0, "swish_product": 0}

    def counted(name):
        function = getattr(layers, name)

        def call(*arguments):
            calls[name] += 1
            return function(*arguments)

        monkeypatch.setattr(layers, name, call)

    for name in calls:
        counted(name)
    return calls


@pytest.mark.parametrize("family", COUNTS)
def test_a_model_with_compiled_layers_computes_the_same_and_is_restored(make_model, looped, family):
    model = make_model(family)
    expected = outcome(model)
    with replaced_forwards(compiled_forwards(model)):
        ours = outcome(model)
        assert not compiled_forwards(model), "what was replaced already is left alone"
    assert sum(looped.values()) == COUNTS[family]
    assert not any("forward" in module.__dict__ for module in model.modules())
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * other.abs().max().item())


def test_the_learner_uses_compiled_layers(make_model, make_rows, looped):
    model = make_model()
    [part] = pack(collate(make_rows()), 10**9)
    token_logprobs(model, part)[0].sum().backward()
    assert sum(looped.values()) == COUNTS["qwen3"]
    with torch.no_grad():
        token_logprobs(model, part)
    assert sum(looped.values()) == 2 * COUNTS["qwen3"]


def test_other_dtypes_are_left_to_torch(make_model, looped):
    model = make_model().to(torch.bfloat16)
    expected = outcome(model)
    with replaced_forwards(compiled_forwards(model)):
        ours = outcome(model)
    assert not any(looped.values())
    assert all(torch.equal(one, other) for one, other in zip(ours, expected, strict=True))


def test_norms_that_add_one_to_their_weight_are_not_replaced():
    model = GemmaForCausalLM(GemmaConfig(**SHAPE, head_dim=8))
    assert compiled_forwards(model) == []


def test_gates_with_another_activation_are_not_replaced():
    model = Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8, hidden_act="gelu"))
    assert {type(module).__name__ for module, _ in compiled_forwards(model)} == {"Qwen3RMSNorm"}


def test_subclasses_of_norms_are_not_replaced():
    class OtherNorm(Qwen3RMSNorm):
        pass

    assert compiled_forwards(nn.ModuleList([OtherNorm(4)])) == []


def test_unreadable_weights_use_the_modules_own_forward(looped):
    class Sharded(torch.Tensor):
        pass

    norm = Qwen3RMSNorm(4)
    [(_, forward)] = compiled_forwards(norm)
    inputs = torch.randn(3, 4)
    expected = norm(inputs)
    assert torch.equal(forward(inputs.as_subclass(Sharded)), expected)
    assert torch.equal(forward(inputs.double()), norm(inputs.double()))
    assert not looped["rms_norm"]
    torch.testing.assert_close(forward(inputs), expected)
    assert looped["rms_norm"] == 1


def test_adapters_and_hooks_in_a_block_are_called(make_model):
    pytest.importorskip("peft")
    model = make_model()
    add_adapters(model, Adapters(rank=2, alpha=4.0, targets=("gate_proj", "down_proj")), seed=0)
    for name, weight in model.named_parameters():
        if ".lora_B." in name:
            nn.init.normal_(weight)
    called = []
    model.model.layers[0].mlp.up_proj.register_forward_hook(lambda *_: called.append("up_proj"))
    model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: called.append("mlp"))
    expected = outcome(model)
    with replaced_forwards(compiled_forwards(model)):
        ours = outcome(model)
    assert called == ["mlp", "up_proj"] * 2
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * other.abs().max().item())
