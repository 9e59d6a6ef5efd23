from __future__ import annotations

import pytest
import torch
from padded import whole

from sleuth.learn.batch import Batch
from sleuth.learn.logprobs import token_hits, token_logprobs
from sleuth.learn.prefix_tree import Pack

FAMILIES = ["qwen3", "qwen2", "llama"]


def drawn_batch(seed: int = 0, rows: int = 5, tokens: int = 17):
    generator = torch.Generator().manual_seed(seed)
    input_ids = torch.randint(40, (rows, tokens), generator=generator)
    needed = torch.rand(rows, tokens, generator=generator) < 0.4
    return input_ids, needed


def as_pack(input_ids, needed) -> Pack:
    ones = torch.ones(input_ids.shape)
    lengths = torch.full((len(input_ids),), input_ids.shape[1])
    batch = Batch(
        tokens=input_ids, lengths=lengths, trained=needed, advantages=ones, weights=ones, sampler_logprobs=None
    )
    return whole(batch)


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
    ours = token_logprobs(model, as_pack(input_ids, needed), temperature=temperature)
    for mine, slow in zip(ours, slow_logprobs(model, input_ids, needed, temperature), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, slow, atol=1e-5, rtol=1e-5)
    assert not ours[0][:, 0].any()


def test_the_entropy_carries_no_gradient(make_model):
    logprobs, entropy = token_logprobs(make_model(), as_pack(*drawn_batch()))
    assert logprobs.requires_grad
    assert not entropy.requires_grad


def test_no_needed_token_gives_a_loss_of_zero_that_can_be_differentiated(make_model):
    model, (input_ids, needed) = make_model(), drawn_batch()
    logprobs, _ = token_logprobs(model, as_pack(input_ids, torch.zeros_like(needed)))
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
    assert torch.equal(token_hits(model, as_pack(input_ids, needed)), expected)


def test_the_gradients_of_tokens_that_rows_share_add_up_in_the_same_order_every_time(make_model):
    model, (input_ids, needed) = make_model(), drawn_batch(rows=600, tokens=60)
    input_ids[:, :40] = input_ids[0, :40]
    pack, pulls = as_pack(input_ids, needed), torch.randn(600, 60)

    def gradient() -> bytes:
        model.zero_grad()
        (token_logprobs(model, pack)[0] * pulls).sum().backward()
        return model.get_input_embeddings().weight.grad.numpy().tobytes()

    assert len({gradient() for _ in range(6)}) == 1
