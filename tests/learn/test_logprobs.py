from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from sleuth.learn import logprobs as logprobs_module
from sleuth.learn.logprobs import token_hits, token_logprobs

FAMILIES = ["qwen3", "qwen2", "llama"]


def drawn_batch(seed: int = 0, rows: int = 5, tokens: int = 17):
    generator = torch.Generator().manual_seed(seed)
    input_ids = torch.randint(40, (rows, tokens), generator=generator)
    needed = torch.rand(rows, tokens, generator=generator) < 0.4
    return input_ids, needed


def slow_logprobs(model, input_ids, needed, temperature):
    """Token by token from the model's own full logits."""
    logits = model(input_ids).logits.float() / temperature
    logprobs, entropies = torch.zeros(input_ids.shape), torch.zeros(input_ids.shape)
    for row, token in needed.nonzero().tolist():
        if token > 0:
            distribution = logits[row, token - 1].softmax(dim=0)
            logprobs[row, token] = distribution[input_ids[row, token]].log()
            entropies[row, token] = -sum(p * p.log() for p in distribution)
    return logprobs, entropies


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@torch.no_grad()
def test_index_t_speaks_of_token_t(make_model, family, temperature):
    model, (input_ids, needed) = make_model(family), drawn_batch()
    needed[:, 0] = True  # the first token is predicted by nothing: 0
    ours = token_logprobs(model, input_ids, needed, temperature=temperature)
    for mine, slow in zip(ours, slow_logprobs(model, input_ids, needed, temperature), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, slow, atol=1e-5, rtol=1e-5)
    assert not ours[0][:, 0].any()


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_padding_on_the_right_changes_no_log_probability(make_model, family):
    model, (input_ids, needed) = make_model(family), drawn_batch()
    needed[:, 12:] = False
    alone = token_logprobs(model, input_ids[:, :12], needed[:, :12])[0]
    padded = token_logprobs(model, input_ids, needed)[0]
    torch.testing.assert_close(padded[:, :12], alone, atol=1e-5, rtol=1e-5)


@given(seed=st.integers(0, 1000), rows=st.integers(1, 6))
@settings(max_examples=15, deadline=None)
def test_a_projection_in_parts_gives_the_same_values_and_gradients(seed, rows):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    model, (input_ids, needed) = LlamaForCausalLM(config), drawn_batch(seed, rows)
    results = []
    for at_once in (2**26, 40 * 3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(logprobs_module, "LOGITS_AT_ONCE", at_once)
            values, entropies = token_logprobs(model, input_ids, needed)
        model.zero_grad()
        values.sum().backward()
        results.append((values, entropies, [parameter.grad.clone() for parameter in model.parameters()]))
    whole, parts = results
    torch.testing.assert_close(parts[0], whole[0])
    torch.testing.assert_close(parts[1], whole[1])
    for part, full in zip(parts[2], whole[2], strict=True):
        torch.testing.assert_close(part, full, rtol=1e-4, atol=1e-5)


def test_a_projection_in_parts_keeps_no_more_than_one_part_of_the_logits(make_model, monkeypatch):
    monkeypatch.setattr(logprobs_module, "LOGITS_AT_ONCE", 40 * 4)
    saved: list[int] = []

    def remember(tensor):
        saved.append(tensor.numel() if tensor.dim() == 2 and tensor.shape[1] == 40 else 0)
        return tensor

    input_ids, _ = drawn_batch()
    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        token_logprobs(make_model(), input_ids, torch.ones_like(input_ids, dtype=torch.bool))
    assert sum(saved) == 0, "distributions over the vocabulary were kept for the backward pass"


def test_the_entropy_carries_no_gradient(make_model):
    logprobs, entropy = token_logprobs(make_model(), *drawn_batch())
    assert logprobs.requires_grad
    assert not entropy.requires_grad


def test_positions_that_predict_no_needed_token_get_exactly_no_gradient(make_model):
    model, (input_ids, needed) = make_model(), drawn_batch()
    states: list[torch.Tensor] = []
    model.base_model.register_forward_hook(lambda module, args, output: states.append(output.last_hidden_state))
    logprobs, _ = token_logprobs(model, input_ids, needed)
    states[0].retain_grad()
    logprobs.sum().backward()
    predicts = torch.zeros_like(needed)
    predicts[:, :-1] = needed[:, 1:]
    # only the vocabulary projection reads the last hidden states, so no gradient here is no gradient of any logit
    assert torch.equal(states[0].grad.abs().sum(dim=2) > 0, predicts)


def test_no_needed_token_gives_a_loss_of_zero_that_can_be_differentiated(make_model):
    model, (input_ids, needed) = make_model(), drawn_batch()
    logprobs, _ = token_logprobs(model, input_ids, torch.zeros_like(needed))
    logprobs.sum().backward()
    assert not logprobs.any()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in model.parameters())


def test_hits_are_the_needed_tokens_that_the_model_holds_most_likely(make_model):
    model, (input_ids, needed) = make_model(), drawn_batch()
    with torch.no_grad():
        likeliest = model(input_ids).logits.argmax(dim=-1)
        input_ids[0, 5] = likeliest[0, 4]  # one sure hit: what follows it is compared below with fresh logits
        needed[0, 5] = True
        likeliest = model(input_ids).logits.argmax(dim=-1)
    expected = torch.zeros_like(needed)
    expected[:, 1:] = needed[:, 1:] & (likeliest[:, :-1] == input_ids[:, 1:])
    assert expected[0, 5]
    assert torch.equal(token_hits(model, input_ids, needed), expected)
