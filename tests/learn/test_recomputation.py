"""On a card gradient checkpointing computes only those layers again whose activations do not fit. Without one: the code
of a card with real numbers, where tensors of host and card are told apart."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from claimed_card import host_and_card
from tiny_models import FAMILIES
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM
from windowed_models import windowed_model

from sleuth.kernels import fused
from sleuth.kernels.card_pass import CardPass
from sleuth.learn.batch import Row, collate
from sleuth.learn.logprobs import token_logprobs
from sleuth.learn.losses import PolicyLoss
from sleuth.learn.master_weights import MasterWeights
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy
from sleuth.learn.prefix_tree import pack
from sleuth.learn.recomputation import card_pass_of
from sleuth.plan.memory import CUDA, Passes
from sleuth.plan.shapes import read_shape
from sleuth.ranks import Ranks

SETTINGS = Optimisation(steps=10, learning_rate=1e-3)
ENOUGH = 10**15


def deep_model(layers: int = 4):
    torch.manual_seed(0)
    config = FAMILIES["qwen3"]().config
    config.num_hidden_layers, config.layer_types = layers, ["full_attention"] * layers
    return Qwen3ForCausalLM(config).eval()


def runs_of_layers(model) -> Counter[int]:
    """How often the attention of each layer runs from now on."""
    runs = Counter[int]()
    for number, layer in enumerate(model.model.layers):
        layer.self_attn.register_forward_hook(lambda *arguments, number=number: runs.update([number]))
    return runs


@pytest.mark.parametrize("kept", [0, 1, 3, 4])
def test_the_last_layers_are_kept_and_every_gradient_has_the_same_bytes(make_rows, monkeypatch, kept) -> None:
    batch, gradients = collate(make_rows(9)), []
    for checkpointed in (False, True):
        model = deep_model()
        policy, runs = Policy(model, SETTINGS, gradient_checkpointing=checkpointed), runs_of_layers(model)
        monkeypatch.setattr(CardPass, "kept_layers", lambda self, tokens, free: kept)
        with host_and_card(model, free=ENOUGH):
            gradients.append(policy.gradient(batch, PolicyLoss(), budget=60)[1])
            passes = len(policy._packs(batch, PolicyLoss(), 60))
        assert not any(module.training for module in model.modules())
    assert runs == {layer: passes * (1 if layer >= 4 - kept else 2) for layer in range(4)}
    assert torch.equal(*gradients)


def test_a_card_keeps_what_fits_and_other_devices_and_ranks_nothing(make_rows, monkeypatch) -> None:
    [part] = pack(collate(make_rows(9)), 10**9)

    def kept(free=ENOUGH, world=1, on_card=True):
        model = deep_model()
        masters = MasterWeights(model)
        masters.ranks = Ranks(world=world)
        policy = Policy(model, SETTINGS, gradient_checkpointing=True, holding=lambda *given, **settings: masters)
        assert policy._recomputation is not None
        with host_and_card(model, free=free):
            tree = part.to(model.device).tree if on_card else part.tree
            return policy._recomputation._kept_layers(tree)

    assert kept() == 4
    assert kept(free=0) == kept(on_card=False) == kept(world=2) == 0
    need = card_pass_of(deep_model())
    assert need is not None
    amounts = [kept(free=free) for free in range(0, 3_000_000, 20_000)]
    assert amounts == sorted(amounts)
    assert {*amounts} == {0, 1, 2, 3, 4}
    monkeypatch.setattr(fused._Switch, "on", False)
    assert kept() == 0, "what is not fused keeps more"


@pytest.mark.parametrize("family", ["mistral", "gemma3", "mixtral"])
def test_layers_of_parts_that_are_not_fused_are_all_computed_again(family) -> None:
    assert card_pass_of(windowed_model(family, 50)) is None


def test_short_of_memory_an_update_keeps_half_and_then_nothing_before_it_takes_fewer_tokens(
    make_rows, monkeypatch, capsys
) -> None:
    batch, model = collate(make_rows(9)), deep_model()
    policy = Policy(model, SETTINGS, gradient_checkpointing=True)
    recomputed, tried, most = policy._recomputation, list[int](), 4
    assert recomputed is not None
    monkeypatch.setattr(CardPass, "kept_layers", lambda self, tokens, free: 4 * free // ENOUGH)

    def refuse(*arguments: object) -> None:
        tried.append(recomputed._kept)
        if len(tried) % 2 == 0 and recomputed._kept > most:  # in a second pass, when the first has left gradients
            raise torch.OutOfMemoryError("CUDA out of memory.")

    model.model.layers[0].register_forward_pre_hook(refuse)

    def gradient() -> Tensor:
        tried.clear()
        return policy.gradient(batch, PolicyLoss(), budget=60)[1]

    with host_and_card(model, free=ENOUGH):
        whole = gradient()
        assert {*tried} == {4}
        most = 3
        assert torch.equal(gradient(), whole)
        assert {*tried} == {4, 2}
        most = 1
        assert torch.equal(gradient(), whole)
        assert {*tried} == {2, 0}
        assert capsys.readouterr().err.count("out of memory: computing the activations of more layers again") == 2
        most = -1
        with pytest.raises(torch.OutOfMemoryError):
            gradient()


@pytest.mark.parametrize("kind", ["qwen3", "qwen2"])
def test_a_pass_on_a_card_keeps_the_bytes_that_are_planned(kind) -> None:
    """The widths of Qwen3-0.6B in bf16, and the tensors that its functions on a card save."""
    config_class, model_class = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}[
        kind
    ]
    count = 256
    row = Row(tokens=tuple(range(count)), trained=(True,) * count, advantage=1.0)
    found = []
    for layers in (1, 3):
        sizes = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": layers, "vocab_size": 500}
        heads = {"num_attention_heads": 16, "num_key_value_heads": 8}
        config = config_class(**sizes, **heads, attn_implementation="eager", tie_word_embeddings=True)
        model = model_class(config).to(torch.bfloat16).eval()
        saved: dict[int, int] = {}

        def save(tensor, saved=saved, model=model):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in {weight.untyped_storage().data_ptr() for weight in model.parameters()}:
                saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        with host_and_card(model), torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            [part] = pack(collate([row]), 10**9)
            logprobs, _ = token_logprobs(model, part.to(model.device))
        found.append(sum(saved.values()))
        del logprobs
    need = card_pass_of(model)
    assert need is not None
    assert (found[1] - found[0]) / 2 / count == pytest.approx(need.layer, rel=0.01)
    if kind == "qwen3":
        assert need.layer == 45_120
    planned = Passes(shape=read_shape(config.to_dict(), kind), device=CUDA, size=2)
    assert planned.card_pass() == need
    assert found[1] == pytest.approx(planned.activations(count, 3), rel=0.1)
