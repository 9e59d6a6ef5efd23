"""Adapters: the model stays, a product beside its matrices learns, and every save is a whole model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from sleuth.learn.adapters import Adapters, add_adapters, has_adapters, load_adapters, merged_state, write_model
from sleuth.learn.batch import collate
from sleuth.learn.losses import PolicyLoss
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy
from sleuth.types import SleuthError

pytest.importorskip("peft")
LORA = Adapters(rank=4, alpha=8.0, targets=("q_proj", "v_proj", "down_proj"))
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


def adapted(model, seed: int = 0):
    add_adapters(model, LORA, seed=seed)
    return model


def learned(model, make_rows):
    """A model with adapters that have learned a little."""
    policy = Policy(adapted(model), Optimisation(steps=5, learning_rate=1e-2))
    for seed in range(3):
        policy.update(collate(make_rows(seed=seed)), PolicyLoss(), budget=100)
    return model


def test_fresh_adapters_change_nothing(make_model):
    assert torch.equal(adapted(make_model())(IDS).logits, make_model()(IDS).logits)
    assert has_adapters(adapted(make_model()))
    assert not has_adapters(make_model())


def test_the_same_seed_draws_the_same_adapters(make_model):
    one, same, other = (dict(adapted(make_model(), seed).named_parameters()) for seed in (0, 0, 1))
    drawn = [name for name in one if ".lora_A." in name]
    assert drawn
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in drawn)


def test_an_update_changes_adapters_only(make_model, make_rows):
    before = make_model().state_dict()
    model = learned(make_model(), make_rows)
    for name, weight in model.named_parameters():
        if ".lora_" in name:
            assert weight.requires_grad
        else:
            assert torch.equal(weight, before[name.replace(".base_layer.", ".")]), name
    assert not torch.equal(model(IDS).logits, make_model()(IDS).logits)


def test_a_merged_weight_follows_the_formula(make_model):
    """Rank 4, alpha 8: W + 2 B A, added up by hand for one element."""
    model = adapted(make_model())
    layer = model.model.layers[0].self_attn.q_proj
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    with torch.no_grad():
        b.copy_(torch.arange(b.numel(), dtype=torch.float32).view(b.shape) / 100)
    merged = merged_state(model)["model.layers.0.self_attn.q_proj.weight"]
    by_hand = float(layer.base_layer.weight[3, 5]) + 2 * sum(float(b[3, k]) * float(a[k, 5]) for k in range(4))
    assert float(merged[3, 5]) == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_a_save_is_a_whole_model_that_computes_the_same(make_model, make_rows, tmp_path: Path, family: str):
    model = learned(make_model(family), make_rows)
    write_model(model, tmp_path / "saved")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert loaded.state_dict().keys() == make_model(family).state_dict().keys()
    assert torch.allclose(loaded(IDS).logits, model(IDS).logits, atol=1e-5)


def test_peft_reads_the_adapters(make_model, make_rows, tmp_path: Path):
    from peft import PeftModel

    model = learned(make_model(), make_rows)
    write_model(model, tmp_path / "saved")
    read = PeftModel.from_pretrained(make_model(), tmp_path / "saved" / "adapter")
    assert torch.equal(read(IDS).logits, model(IDS).logits)


def test_adapters_that_do_not_match_the_recipe_are_refused(make_model, tmp_path: Path):
    write_model(adapted(make_model()), tmp_path / "saved")
    wider = make_model()
    add_adapters(wider, Adapters(rank=8, alpha=8.0, targets=LORA.targets), seed=0)
    with pytest.raises(SleuthError, match="lora must stay unchanged"):
        load_adapters(wider, tmp_path / "saved")
    write_model(make_model(), tmp_path / "plain")
    with pytest.raises(SleuthError, match="was not trained with lora"):
        load_adapters(wider, tmp_path / "plain")


def test_a_missing_layer_is_refused_with_the_existing_ones(make_model):
    with pytest.raises(SleuthError, match=r"no layer 'c_attn' that can have adapters; it has q_proj, k_proj"):
        add_adapters(make_model(), Adapters(rank=4, alpha=8.0, targets=("c_attn",)), seed=0)


@pytest.mark.parametrize("family", ["llama", "qwen3"])  # an untied and a tied head
def test_the_output_head_whose_adapters_would_never_be_called_is_refused(make_model, family: str):
    with pytest.raises(SleuthError, match=r"no layer 'lm_head' .* has (?!.*lm_head)"):
        add_adapters(make_model(family), Adapters(rank=4, alpha=8.0, targets=("lm_head",)), seed=0)


def test_muon_trains_adapters_and_continues(make_model, make_rows):
    settings = Optimisation(steps=5, learning_rate=1e-3, name="muon")
    policy = Policy(adapted(make_model()), settings)
    assert policy.update(collate(make_rows()), PolicyLoss(), budget=100).changed_weights_fraction > 0
    again = Policy(adapted(make_model()), settings)
    again.load_state_dict(policy.state_dict())
    assert again.state_dict()["optimiser"]["steps"] == 1


def test_16_bit_adapters_keep_masters(make_model, make_rows):
    model = adapted(make_model().to(torch.bfloat16))
    policy = Policy(model, Optimisation(steps=5, learning_rate=1e-3))
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in policy.masters.tensors.values()} == {torch.float32}
    assert policy.masters.tensors.keys() == {name for name, _ in model.named_parameters() if ".lora_" in name}
    assert policy.update(collate(make_rows()), PolicyLoss(), budget=100).changed_weights_fraction > 0
