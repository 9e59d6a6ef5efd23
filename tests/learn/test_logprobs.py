from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from padded import whole

from sleuth.kernels import vocabulary
from sleuth.learn.batch import Batch, Row
from sleuth.learn.logprobs import row_logprobs, token_hits, token_logprobs, token_loss
from sleuth.learn.losses import PolicyLoss
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
def test_index_t_belongs_to_token_t(make_model, family, temperature):
    model, (input_ids, needed) = make_model(family), drawn_batch()
    needed[:, 0] = True  # the first token is predicted by nothing: 0
    ours = token_logprobs(model, as_pack(input_ids, needed), temperature=temperature)
    for mine, slow in zip(ours, slow_logprobs(model, input_ids, needed, temperature), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, slow, atol=1e-5, rtol=1e-5)
    assert not ours[0][:, 0].any()


def test_the_entropy_has_no_gradient(make_model):
    logprobs, entropy = token_logprobs(make_model(), as_pack(*drawn_batch()))
    assert logprobs.requires_grad
    assert not entropy.requires_grad


def test_without_trained_tokens_the_loss_is_a_differentiable_zero(make_model):
    model, (input_ids, needed) = make_model(), drawn_batch()
    logprobs, _ = token_logprobs(model, as_pack(input_ids, torch.zeros_like(needed)))
    logprobs.sum().backward()
    assert not logprobs.any()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in model.parameters())


def test_hits_are_the_trained_tokens_that_are_the_models_most_likely(make_model):
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
    pack, grads = as_pack(input_ids, needed), torch.randn(600, 60)

    def gradient() -> bytes:
        model.zero_grad()
        (token_logprobs(model, pack)[0] * grads).sum().backward()
        return model.get_input_embeddings().weight.grad.numpy().tobytes()

    assert len({gradient() for _ in range(6)}) == 1


LOSSES = [
    PolicyLoss(),
    PolicyLoss(old_logprobs="sampler", clip_low=0.1, clip_high=0.1),
    PolicyLoss(old_logprobs="sampler", policy_loss="cispo", clip_low=1.0, clip_high=0.5),
    PolicyLoss(tis_cap=1.2, temperature=0.7),
    PolicyLoss(old_logprobs="sampler", beta=0.1, kl="k2"),
]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**16), loss=st.sampled_from(LOSSES), chunk=st.sampled_from([1, 3, 1000]))
def test_a_sum_over_tokens_has_the_same_value_and_gradient_with_less_work(make_model, seed, loss, chunk):
    """On rows with a common beginning, so that tokens of the tree pull in several rows; in fp64, to 1e-10."""
    draw = torch.Generator().manual_seed(seed)
    common = torch.randint(40, (1, 6), generator=draw).expand(5, -1)
    tokens = torch.cat([common, torch.randint(2, (5, 7), generator=draw)], dim=1)
    trained = torch.rand(tokens.shape, generator=draw) < 0.6
    trained[:, 0] = False
    advantages, sampler, reference = (torch.randn(tokens.shape, generator=draw, dtype=torch.float64) for _ in range(3))
    rows = Batch(
        tokens=tokens,
        lengths=torch.full((5,), tokens.shape[1]),
        trained=trained,
        advantages=advantages * trained,
        weights=torch.rand(tokens.shape, generator=draw, dtype=torch.float64) * trained,
        sampler_logprobs=(sampler - 3.5) * trained,
    )
    part, model = whole(rows), make_model().double()
    measured = (reference - 3.5) * trained if loss.beta else None
    logprobs, entropy = token_logprobs(model, part, temperature=loss.temperature)
    plain, _ = loss(part.rows, logprobs, measured)
    of_plain = torch.autograd.grad(plain, [*model.parameters()], allow_unused=True)
    with patch.multiple(vocabulary, MIN_CHUNK_ROWS=chunk, CHUNK_LOGITS=1):
        share, told, of_told = token_loss(model, part, loss, measured, temperature=loss.temperature)
        ours = torch.autograd.grad(share, [*model.parameters()], allow_unused=True)
    for mine, theirs in ((share, plain), (told, logprobs), (of_told, entropy)):
        torch.testing.assert_close(mine.detach(), theirs.detach(), rtol=0, atol=1e-10)
    for mine, theirs in zip(ours, of_plain, strict=True):
        if theirs is not None and mine is not None:
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)
        else:
            assert mine is theirs is None


def test_a_loss_of_whole_rows_is_not_a_sum_over_tokens():
    assert all(loss.is_sum_over_tokens for loss in LOSSES)
    assert not PolicyLoss(old_logprobs="sampler", ratio="sequence").is_sum_over_tokens


# -- row by row --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def slow(model, row: Row) -> list[float]:
    """Row by row from the model's own full logits."""
    logprobs = model(torch.tensor([row.tokens])).logits[0].float().log_softmax(dim=-1)
    return [
        float(logprobs[at - 1, token]) if trained and at else 0.0
        for at, (token, trained) in enumerate(zip(row.tokens, row.trained, strict=True))
    ]


@pytest.mark.parametrize("budget", [1, 24, 10_000])
def test_results_have_the_order_of_the_rows(make_model, make_rows, budget) -> None:
    model, rows = make_model(), make_rows(rows=9, seed=3)
    found = row_logprobs(model, rows, budget=budget)
    assert len(found) == len(rows)
    for row, logprobs in zip(rows, found, strict=True):
        assert logprobs == pytest.approx(slow(model, row), abs=1e-5)  # fp32, other orders of summation


def test_rows_without_trained_tokens_are_zeros(make_model) -> None:
    rows = [Row(tokens=(3, 4, 5), trained=(False, False, False)), Row(tokens=(3,), trained=(True,))]
    assert row_logprobs(make_model(), rows, budget=8) == [[0.0, 0.0, 0.0], [0.0]]
