from __future__ import annotations

import pytest
import torch
from claimed_card import ClaimedCard
from torch import nn
from torch.optim import _muon
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from sleuth.learn import optim
from sleuth.learn.master_weights import MasterWeights
from sleuth.learn.optim import (
    Optimisation,
    Optimiser,
    UpdateResolution,
    half_spacing,
    orthogonal,
    parameter_roles,
    path_length,
    scheduled_learning_rate,
)


def optimiser_for(model, **settings) -> Optimiser:
    weights = dict(model.named_parameters())
    return Optimiser(model, weights, Optimisation(steps=10, learning_rate=1e-2, **settings))


def give_gradients(model, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_warmup_rises_linearly_and_cosine_falls_to_zero_at_the_horizon():
    settings = Optimisation(steps=12, learning_rate=1.0, schedule="cosine", warmup_steps=4)
    rates = [scheduled_learning_rate(step, settings) for step in range(13)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    # half of the eight steps after the warm-up: cos(pi / 2) = 0
    assert rates[4] == 1.0
    assert rates[8] == pytest.approx(0.5)
    assert rates[12] == pytest.approx(0.0)


def test_the_constant_schedule_is_constant():
    settings = Optimisation(steps=12, learning_rate=0.5, warmup_steps=2)
    assert [scheduled_learning_rate(step, settings) for step in (0, 1, 2, 11, 50)] == [0.25, 0.5, 0.5, 0.5, 0.5]


def test_roles_distinguish_matrices_head_embeddings_and_vectors(make_model):
    untied, tied = parameter_roles(make_model("llama")), parameter_roles(make_model("qwen3"))
    assert untied["model.embed_tokens.weight"] == tied["model.embed_tokens.weight"] == "embedding"
    assert untied["lm_head.weight"] == "head"
    assert "lm_head.weight" not in tied
    assert untied["model.layers.0.self_attn.q_proj.weight"] == "matrix"
    assert tied["model.layers.1.self_attn.q_norm.weight"] == "vector"
    assert parameter_roles(make_model("qwen2"))["model.layers.0.self_attn.q_proj.bias"] == "vector"


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_weight_decay_does_not_apply_to_embeddings_norms_and_biases(make_model, name):
    model = make_model("qwen2")
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser_for(model, name=name, weight_decay=0.1).step()
    roles = parameter_roles(model)
    for key, weight in model.named_parameters():
        kept = 1 - 1e-2 * 0.1 if roles[key] in ("matrix", "head") else 1.0
        torch.testing.assert_close(weight.detach(), before[key] * kept, msg=key)


def test_muon_steps_the_hidden_matrices_and_adamw_the_rest(make_model):
    model = make_model("llama")
    optimiser = optimiser_for(model, name="muon")
    by_muon = {id(weight) for group in optimiser.parts["muon"].param_groups for weight in group["params"]}
    roles = parameter_roles(model)
    for key, weight in model.named_parameters():
        assert (id(weight) in by_muon) == (roles[key] == "matrix"), key


def test_muon_updates_have_a_fifth_of_the_size_of_adamws_whatever_the_shape():
    # arXiv:2502.16982 scales to a root mean square of 0.2, what AdamW's updates have in the long run; its first is 1
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=256, num_hidden_layers=1, num_attention_heads=2
    )
    for name in ("q_proj", "down_proj"):
        model = LlamaForCausalLM(config)
        weight = next(weight for key, weight in model.named_parameters() if name in key)
        before = weight.detach().clone()
        give_gradients(model, 0)
        optimiser_for(model, name="muon").step()
        size = (weight.detach() - before).square().mean().sqrt().item() / 1e-2
        assert 0.13 < size < 0.25, name


@pytest.mark.parametrize("shape", [(16, 16), (12, 40), (64, 9)])
def test_the_iteration_in_fp32_is_torchs_but_for_its_rounding(shape):
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    settings = ((3.4445, -4.7750, 2.0315), 5, 1e-7)
    ours = orthogonal(gradient, *settings)
    theirs = _muon._zeropower_via_newtonschulz(gradient, *settings).float()
    assert (ours - theirs).norm() < 0.03 * theirs.norm()  # bfloat16 keeps 8 bits, and five iterations add up
    u, s, v = torch.linalg.svd(gradient, full_matrices=False)
    x = s / s.norm()
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5
    torch.testing.assert_close(ours, u @ torch.diag(x) @ v, atol=1e-4, rtol=0)  # fp32, by each singular value alone


def test_muon_multiplies_in_bf16_only_where_the_processor_can(make_model, monkeypatch):
    def dtypes(has_bf16):
        monkeypatch.setattr(optim, "HAS_BF16", has_bf16)
        model, seen = make_model("llama"), set()
        give_gradients(model, 0)

        class Watch(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                if function is torch.ops.aten.addmm.default:
                    seen.add(args[0].dtype)
                return function(*args, **(kwargs or {}))

        with Watch():
            optimiser_for(model, name="muon").step()
        return seen

    assert dtypes(has_bf16=True) == {torch.bfloat16}
    assert dtypes(has_bf16=False) == {torch.float32}


@pytest.mark.parametrize("chunk", [7, 2**18])
def test_adamw_in_chunks_makes_the_steps_of_torchs(make_model, monkeypatch, chunk):
    monkeypatch.setattr(optim, "CHUNK", chunk)
    ours, theirs = make_model("llama"), make_model("llama")
    optimiser = optimiser_for(ours, betas=(0.8, 0.95))
    plain = torch.optim.AdamW(theirs.parameters(), lr=1e-2, betas=(0.8, 0.95), weight_decay=0.0)
    for seed in range(3):
        give_gradients(ours, seed)
        give_gradients(theirs, seed)
        optimiser.step()
        plain.step()
    for key, weight in ours.named_parameters():
        torch.testing.assert_close(weight, theirs.get_parameter(key), rtol=1e-5, atol=1e-6, msg=key)
    state, expected = optimiser.parts["adamw"].state, plain.state
    mine, other = (state[ours.lm_head.weight], expected[theirs.lm_head.weight])
    assert mine.keys() == other.keys()
    for key, value in mine.items():
        torch.testing.assert_close(value, other[key], rtol=1e-5, atol=1e-6, msg=key)


def mixed_model(make_model):
    """In bf16, but for its norms, as some models keep them."""
    model = make_model("llama").to(torch.bfloat16)
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data = weight.data.float()
    return model


@pytest.mark.parametrize("claimed", [False, True])
@pytest.mark.parametrize("batch", [1, 200, 2**24])
def test_weights_stepped_in_lists_are_those_stepped_one_by_one(make_model, monkeypatch, claimed, batch):
    """Bit for bit, through masters and without them, also the gradients that add up in two passes."""
    monkeypatch.setattr(optim, "CARD_BATCH", batch)
    model = mixed_model(make_model)
    masters = MasterWeights(model)
    optimiser = Optimiser(model, masters.tensors, Optimisation(steps=9, learning_rate=1e-2, weight_decay=0.1))
    alone = {name: [master.detach().clone(), *(torch.zeros_like(master) for _ in range(3))]
             for name, master in masters.tensors.items()}  # fmt: skip
    roles, generator = parameter_roles(model), torch.Generator().manual_seed(0)
    for step in range(1, 4):
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        for number in range(2):
            for name, weight in model.named_parameters():
                gradient = torch.randn(weight.shape, generator=generator).to(weight.dtype)
                own = weight.grad if masters.tensors[name] is weight else None
                weight.grad = gradient if own is None else own + gradient
                alone[name][1] = gradient.float() + (alone[name][1] if number else 0)
            with ClaimedCard() if claimed else torch.no_grad():
                masters.collect_gradients()
        with ClaimedCard() if claimed else torch.no_grad():
            changed = optimiser.step()
            masters.discard_gradients()
            masters.publish()
        for name, (weight, gradient, mean, square) in alone.items():
            torch.ops.aten._fused_adamw_(
                [weight], [gradient], [mean], [square], [], [torch.tensor(float(step))],
                lr=1e-2, beta1=0.9, beta2=0.999, eps=1e-8, amsgrad=False, maximize=False,
                weight_decay=0.1 if roles[name] in ("matrix", "head") else 0.0,
            )  # fmt: skip
            assert torch.equal(masters.tensors[name], weight), name
            assert torch.equal(model.get_parameter(name), weight.to(before[name].dtype)), name
        assert changed == sum(int((before[name] != weight).sum()) for name, weight in model.named_parameters())


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_a_step_counts_the_elements_that_changed_as_they_are_stored(make_model, monkeypatch, name, stored):
    monkeypatch.setattr(optim, "CHUNK", 50)
    model = make_model("llama").to(stored)
    masters = {key: weight.detach().float().clone().requires_grad_() for key, weight in model.named_parameters()}
    optimiser = Optimiser(model, masters, Optimisation(steps=9, learning_rate=1e-4, name=name))
    generator = torch.Generator().manual_seed(0)
    for master in masters.values():
        master.grad = torch.randn(master.shape, generator=generator)
        master.grad[torch.rand(master.shape, generator=generator) < 0.5] = 0
    changed = optimiser.step()
    seen = sum(int((masters[key].to(stored) != weight).sum()) for key, weight in model.named_parameters())
    assert changed == seen
    assert 0 < seen < sum(weight.numel() for weight in model.parameters())


def test_a_step_makes_no_array_as_large_as_a_weight(make_model, monkeypatch):
    monkeypatch.setattr(optim, "CHUNK", 64)
    model = make_model("llama")
    optimiser = optimiser_for(model)
    give_gradients(model, 0)
    optimiser.step()  # the first makes the moments
    known = {tensor.untyped_storage().data_ptr() for state in optimiser.parts["adamw"].state.values()
             for tensor in state.values()}  # fmt: skip
    known |= {tensor.untyped_storage().data_ptr() for weight in model.parameters() for tensor in (weight, weight.grad)}
    made: list[int] = []

    class Made(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in known:
                made.append(result.numel())
            return result

    with Made():
        optimiser.step()
    assert max(made) == 64 < model.lm_head.weight.numel()


# -- what a step can move ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_changes_below_half_the_spacing_are_rounded_away(dtype: torch.dtype) -> None:
    weights = (torch.randn(2000, generator=torch.Generator().manual_seed(0)) * 0.03).to(dtype)
    away = half_spacing(weights).double() * weights.sign().double()  # away from 0 the spacing is the same or larger
    exact = weights.double()
    assert ((exact + 0.98 * away).to(dtype) == weights).all()
    assert ((exact + 1.02 * away).to(dtype) != weights).all()


def test_a_rate_of_1e_7_changes_a_thousandth_of_typical_weights() -> None:
    model = nn.Linear(1000, 1000, bias=False)
    with torch.no_grad():
        model.weight.normal_(0, 0.03, generator=torch.Generator().manual_seed(1))
    resolution = UpdateResolution(model.bfloat16())
    assert resolution.share(1e-7) == pytest.approx(0.0009, abs=0.0003)  # as simulated for the published runs
    assert resolution.share(1e-6) == pytest.approx(0.013, abs=0.002)
    assert resolution.share(resolution.distance(0.01)) == pytest.approx(0.01, abs=0.005)
    assert UpdateResolution(model.float()).share(1e-7) == 1


def test_the_path_length_is_the_sum_of_learning_rates() -> None:
    settings = Optimisation(steps=4, learning_rate=1.0, warmup_steps=2)
    assert (path_length(settings, 4), path_length(settings, 1)) == (3.5, 0.5)
