from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.learn.losses import (
    cispo_policy_loss,
    clipped,
    clipped_policy_loss,
    group_advantages,
    has_signal,
    kl_penalty,
    out_of_bounds,
    sampler_learner_kl,
    sequence_old_logprobs,
    supervised_loss,
    token_weights,
    truncated_importance_weights,
)

LOG = math.log


def one_row(*values: float) -> torch.Tensor:
    return torch.tensor([values])


def drawn_arrays(seed: int, rows: int, tokens: int):
    """Log-probabilities, old ones, advantages and a mask, all (B, T), with at least one token in the mask."""
    generator = torch.Generator().manual_seed(seed)
    logprobs = -3 * torch.rand(rows, tokens, generator=generator)
    old = logprobs + torch.randn(rows, tokens, generator=generator) / 2
    advantages = torch.randn(rows, tokens, generator=generator)
    mask = torch.rand(rows, tokens, generator=generator) < 0.6
    mask[0, 0] = True
    return logprobs, old, advantages, mask


# -- normalisers -----------------------------------------------------------------------------------------------------

MASK = torch.tensor([[True, True, True, False], [True, False, False, False], [False, False, False, False]])


@pytest.mark.parametrize(
    ("kind", "row_of_three", "row_of_one"),
    [
        ("token", 1 / 4, 1 / 4),  # four tokens in the step
        ("sequence", 1 / 6, 1 / 2),  # two rows with tokens, the empty one is no row; the first shares among three
        ("constant", 0.05, 0.05),  # 1 / (2 rows * 10): a long row is not diluted
    ],
)
def test_token_weights_by_hand(kind, row_of_three, row_of_one):
    expected = torch.tensor([[*[row_of_three] * 3, 0], [row_of_one, 0, 0, 0], [0, 0, 0, 0]])
    torch.testing.assert_close(token_weights(MASK, kind, constant=10), expected)


def test_token_weights_follow_the_emphasis_of_tokens():
    token_weight = torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, 2.0]])
    # by token: shares of 3 + 1 + 2 + 2 = 8; by sequence: half for each row, shared as 3 : 1 and 2 : 2
    assert (8 * token_weights(token_weight, "token")).tolist() == token_weight.tolist()
    assert token_weights(token_weight, "sequence").tolist() == [[0.375, 0.125, 0], [0, 0.25, 0.25]]


@pytest.mark.parametrize("kind", ["token", "sequence", "constant"])
def test_a_step_without_a_trained_token_is_refused(kind):
    with pytest.raises(ValueError, match="no token"):
        token_weights(torch.zeros(2, 3, dtype=torch.bool), kind, constant=10)


# -- the policy loss -------------------------------------------------------------------------------------------------


def test_clipped_policy_loss_by_hand():
    old = one_row(0.0, 0.0, 0.0, 0.0)
    logprobs = one_row(LOG(1.5), LOG(0.5), LOG(1.5), LOG(0.5))
    advantages = one_row(1.0, 1.0, -1.0, -1.0)
    # bounds 0.8 and 1.28. min(1.5, 1.28) = 1.28; min(0.5, 0.8) = 0.5; min(-1.5, -1.28) = -1.5; min(-0.5, -0.8) = -0.8
    # -(1.28 + 0.5 - 1.5 - 0.8) / 4 = 0.13
    weights = torch.full((1, 4), 0.25)
    loss = clipped_policy_loss(logprobs, old, advantages, weights, low=0.2, high=0.28)
    assert loss.item() == pytest.approx(0.13, abs=1e-6)
    assert clipped(logprobs, old, advantages, low=0.2, high=0.28).tolist() == [[True, False, False, True]]


def test_the_gradient_is_zero_exactly_where_the_clip_holds():
    logprobs, old, advantages, mask = drawn_arrays(3, 4, 8)
    logprobs.requires_grad_()
    clipped_policy_loss(logprobs, old, advantages, token_weights(mask, "token"), low=0.2, high=0.3).backward()
    held = clipped(logprobs, old, advantages, low=0.2, high=0.3)
    assert held[mask].any()
    assert not held[mask].all()
    assert torch.equal(logprobs.grad != 0, mask & ~held)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_ratio_that_would_overflow_leaves_loss_and_gradient_finite(advantage):
    logprobs = one_row(-0.1).requires_grad_()
    loss = clipped_policy_loss(logprobs, one_row(-200.0), one_row(advantage), one_row(1.0), low=0.2, high=0.2)
    loss.backward()
    assert math.isfinite(loss.item())
    assert math.isfinite(logprobs.grad.item())


def test_cispo_caps_what_a_token_counts_and_keeps_its_gradient():
    old = one_row(LOG(0.1), LOG(0.1), LOG(0.4), LOG(0.4))
    logprobs = one_row(LOG(0.3), LOG(0.12), LOG(0.3), LOG(0.1)).requires_grad_()
    # ratios 3, 1.2, 0.75, 0.25 within 0.5 and 2: 2, 1.2, 0.75, 0.5
    advantages = one_row(1.0, -1.0, 1.0, -1.0)
    loss = cispo_policy_loss(logprobs, old, advantages, torch.ones(1, 4), low=0.5, high=1.0)
    loss.backward()
    torch.testing.assert_close(logprobs.grad, one_row(-2.0, 1.2, -0.75, 0.5))
    assert loss.item() == pytest.approx(-2 * LOG(0.3) + 1.2 * LOG(0.12) - 0.75 * LOG(0.3) + 0.5 * LOG(0.1))
    assert out_of_bounds(logprobs, old, advantages, low=0.5, high=1.0).tolist() == [[True, False, False, True]]


def test_the_ratio_of_a_row_is_the_geometric_mean_over_its_mask():
    # ratios 8, 1/2 and 2 under the mask: (8 * 1/2 * 2)^(1/3) = 2; the third token is not the policy's
    logprobs = one_row(LOG(0.8), LOG(0.2), LOG(0.9), LOG(0.4))
    old = one_row(LOG(0.1), LOG(0.4), LOG(0.1), LOG(0.2))
    of_row = sequence_old_logprobs(logprobs, old, torch.tensor([[True, True, False, True]]))
    torch.testing.assert_close((logprobs - of_row).exp(), torch.full((1, 4), 2.0))


@given(seed=st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_gspo_token_has_value_and_gradient_of_plain_gspo_where_a_row_shares_its_advantage(seed):
    """arXiv:2507.18071: mean over rows of min(s A, clip(s) A), s = exp(mean over the row of logprobs - old)."""
    logprobs, old, advantages, mask = (array.double() for array in drawn_arrays(seed, 4, 6))
    advantages = advantages[:, :1]
    logprobs.requires_grad_()
    s = (((logprobs - old) * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)).exp()[:, None]  # (B, 1)
    gain = torch.minimum(s * advantages, s.clamp(0.8, 1.3) * advantages)
    rows = mask.any(dim=1, keepdim=True)
    plain = -(gain * rows).sum() / rows.sum()
    of_row = sequence_old_logprobs(logprobs, old, mask.bool())
    weights = token_weights(mask, "sequence")
    ours = clipped_policy_loss(logprobs, of_row, advantages, weights, low=0.2, high=0.3)
    torch.testing.assert_close(ours, plain)
    gradients = [torch.autograd.grad(loss, logprobs)[0] for loss in (ours, plain)]
    torch.testing.assert_close(*gradients)


def test_gspo_token_scales_each_tokens_own_gradient_by_the_ratio_of_its_row():
    logprobs, old = one_row(LOG(0.8), LOG(0.2)).requires_grad_(), one_row(LOG(0.2), LOG(0.2))
    # the row's ratio is (4 * 1)^(1/2) = 2
    of_row = sequence_old_logprobs(logprobs, old, torch.ones(1, 2, dtype=torch.bool))
    clipped_policy_loss(logprobs, of_row, one_row(1.0, -3.0), torch.ones(1, 2), low=0.5, high=2.0).backward()
    torch.testing.assert_close(logprobs.grad, one_row(-2.0, 6.0))


# -- estimators ------------------------------------------------------------------------------------------------------


def test_kl_estimators_by_hand():
    # p = 1/2, ref = 1/4: d = log(ref / p) = -log 2; k1 = log 2; k2 = (log 2)^2 / 2; k3 = 1/2 - 1 + log 2
    p, ref = one_row(LOG(1 / 2)), one_row(LOG(1 / 4))
    assert kl_penalty(p, ref, "k1").item() == pytest.approx(LOG(2))
    assert kl_penalty(p, ref, "k2").item() == pytest.approx(LOG(2) ** 2 / 2)
    assert kl_penalty(p, ref, "k3").item() == pytest.approx(LOG(2) - 1 / 2)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_k1_and_k3_are_unbiased_and_k3_is_never_negative(seed):
    generator = torch.Generator().manual_seed(seed)
    p, ref = torch.randn(2, 6, generator=generator).double().log_softmax(dim=1)
    exact = (p.exp() * (p - ref)).sum().item()
    for kind in ("k1", "k3"):
        assert (p.exp() * kl_penalty(p, ref, kind)).sum().item() == pytest.approx(exact, abs=1e-12)
    assert kl_penalty(p, ref, "k3").min() >= 0


def test_the_expected_gradient_of_k2_is_the_gradient_of_the_kl_and_that_of_k1_is_zero():
    logits = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([0.1, 0.2, -0.5], dtype=torch.float64).log_softmax(dim=0)

    def expected_gradient(value_of):
        p = logits.log_softmax(dim=0)
        return torch.autograd.grad(value_of(p), logits)[0]

    exact = expected_gradient(lambda p: (p.exp() * (p - ref)).sum())
    sampled = {kind: expected_gradient(lambda p, kind=kind: (p.exp().detach() * kl_penalty(p, ref, kind)).sum())
               for kind in ("k1", "k2")}  # fmt: skip
    torch.testing.assert_close(sampled["k2"], exact)
    torch.testing.assert_close(sampled["k1"], torch.zeros(3, dtype=torch.float64))


def test_mismatch_kl_is_the_expected_kl_from_sampler_to_learner():
    sampler = torch.tensor([[0.7, 0.2, 0.1]]).log()
    learner = torch.tensor([[0.5, 0.3, 0.2]]).log()
    exact = 0.7 * LOG(0.7 / 0.5) + 0.2 * LOG(0.2 / 0.3) + 0.1 * LOG(0.1 / 0.2)
    assert (sampler.exp() * sampler_learner_kl(learner, sampler)).sum().item() == pytest.approx(exact, abs=1e-6)
    assert not sampler_learner_kl(learner, learner).any()


def test_importance_weights_are_truncated_and_carry_no_gradient():
    learner = one_row(LOG(0.9), LOG(0.3), LOG(0.2)).requires_grad_()
    sampler = one_row(LOG(0.1), LOG(0.2), LOG(0.4))
    # ratios 9, 1.5, 0.5
    weights = truncated_importance_weights(learner, sampler, cap=2.0)
    torch.testing.assert_close(weights, one_row(2.0, 1.5, 0.5))
    assert not weights.requires_grad


def test_supervised_loss_is_cross_entropy():
    # -(log 1/2 + log 1/8) / 2 = 2 log 2; the third token is not trained
    logprobs = one_row(LOG(1 / 2), LOG(1 / 8), LOG(1 / 100))
    weights = token_weights(torch.tensor([[True, True, False]]), "token")
    assert supervised_loss(logprobs, weights).item() == pytest.approx(2 * LOG(2))


# -- advantages --------------------------------------------------------------------------------------------------------


scores = st.lists(st.none() | st.integers(-50, 50).map(lambda tenths: tenths / 10), min_size=1, max_size=9)


@pytest.mark.parametrize(
    ("kind", "best", "other"),
    [
        # mean 1/4; population variance (9/16 + 3 * 1/16) / 4 = 3/16; (3/4) / sqrt(3/16) = sqrt(3)
        ("grpo", math.sqrt(3), -1 / math.sqrt(3)),
        ("centered", 0.75, -0.25),
        ("rloo", 1, -1 / 3),  # 1 - 0; 0 - 1/3
    ],
)
def test_advantages_by_hand(kind, best, other):
    assert group_advantages([1, 0, 0, 0], kind) == pytest.approx([best, other, other, other])


@pytest.mark.parametrize("kind", ["grpo", "centered", "rloo"])
def test_a_missing_sibling_leaves_mean_deviation_and_result(kind):
    whole = group_advantages([0.2, 0.9, 0.4], kind)
    assert group_advantages([None, 0.2, 0.9, None, 0.4], kind) == [None, whole[0], whole[1], None, whole[2]]


@pytest.mark.parametrize("kind", ["grpo", "centered", "rloo"])
@pytest.mark.parametrize("values", [[0.1, 0.1, 0.1], [0.7], [None, 0.3], [None, None]])
def test_a_group_without_signal_gets_exactly_zero(kind, values):
    assert not has_signal(values)
    assert group_advantages(values, kind) == [None if value is None else 0.0 for value in values]


def test_the_floor_keeps_noise_small():
    # std = 5e-7 is under the floor: (5e-7) / 1e-4 = 0.005 instead of 1
    assert group_advantages([0.5, 0.500001], "grpo") == pytest.approx([-0.005, 0.005], rel=1e-4)


def test_only_the_best_is_imitated_and_only_if_above_zero() -> None:
    assert group_advantages([0.2, None, 0.5, -1.0], "best") == [0.0, None, 1.0, 0.0]
    assert group_advantages([0.5, 0.5, 0.1], "best") == [1.0, 0.0, 0.0]
    assert group_advantages([-0.2, -0.5], "best") == [0.0, 0.0]
    assert group_advantages([0.4, 0.4], "best") == [0.0, 0.0]  # siblings that are alike teach nothing
