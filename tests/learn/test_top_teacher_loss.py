"""Distillation over a teacher's likeliest tokens: by hand, against autograd of the plain formula, through the tree."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from sleuth.learn.batch import collate
from sleuth.learn.logprobs import token_top_logprobs
from sleuth.learn.losses import PolicyLoss, top_teacher_loss
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy, frozen_copy
from sleuth.learn.prefix_tree import packed

SETTINGS = Optimisation(steps=10, learning_rate=1e-3)
GUIDANCE = (0.0, 0.5, 2.0, 0.0, 1.0)


def plain(policy, teacher, k):
    """The divergence of two distributions (V,) over the teacher's k likeliest tokens and the rest."""
    top = teacher.topk(k).indices
    p, q = policy[top], teacher[top]
    rest, taught_rest = 1 - p.sum(), 1 - q.sum()
    return (p * (p / q).log()).sum() + rest * (rest / taught_rest).log()


def test_the_loss_of_two_places_by_hand():
    policy = torch.tensor([[[0.5, 0.25], [0.1, 0.1]]]).log()
    teacher = torch.tensor([[[0.4, 0.4], [0.5, 0.3]]]).log()
    first = 0.5 * math.log(0.5 / 0.4) + 0.25 * math.log(0.25 / 0.4) + 0.25 * math.log(0.25 / 0.2)
    second = 0.1 * math.log(0.1 / 0.5) + 0.1 * math.log(0.1 / 0.3) + 0.8 * math.log(0.8 / 0.2)
    loss = top_teacher_loss(policy, teacher, torch.tensor([[2.0, 0.5]]))
    assert loss.item() == pytest.approx(2 * first + 0.5 * second, rel=1e-5)


def test_no_rest_is_neither_infinite_nor_nan():
    policy = torch.tensor([[[0.0, -1e9]]], requires_grad=True)
    loss = top_teacher_loss(policy, torch.tensor([[[0.0, -40.0]]]), torch.ones(1, 1))
    loss.backward()
    assert loss.isfinite()
    assert policy.grad is not None
    assert policy.grad.isfinite().all()


def test_merging_the_rest_never_adds_and_all_but_one_token_is_the_whole_divergence():
    draw = torch.Generator().manual_seed(0)
    policy, teacher = (torch.randn(9, dtype=torch.float64, generator=draw).softmax(-1) for _ in range(2))
    whole = (policy * (policy / teacher).log()).sum()
    partly = [plain(policy, teacher, k) for k in range(1, 9)]
    assert all(one <= other + 1e-12 for one, other in zip(partly, [*partly[1:], whole], strict=True))
    torch.testing.assert_close(partly[-1], whole)


@pytest.mark.parametrize("advantage", [0.0, 1.0])
def test_value_and_gradient_are_those_of_the_plain_formula_row_by_row(make_model, make_rows, advantage):
    model, teacher = make_model(), frozen_copy(make_model(seed=1))
    rows = [
        dataclasses.replace(row, guidance=guidance, advantage=row.advantage * advantage)
        for row, guidance in zip(make_rows(5), GUIDANCE, strict=True)
    ]
    count = sum(sum(row.trained) for row in rows)
    expected = torch.zeros(())
    for row in rows:
        ids = torch.tensor([row.tokens])
        ours, theirs = (net(ids).logits[0].softmax(-1) for net in (model, teacher))
        for at in range(1, len(row.tokens)):
            if row.trained[at]:
                logprob = ours[at - 1, row.tokens[at]].log()
                expected = expected - row.advantage * (logprob - logprob.detach()).exp() / count
                expected = expected + row.guidance * plain(ours[at - 1], theirs[at - 1].detach(), 4) / count
    expected.backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    loss = PolicyLoss(old_logprobs="learner")
    for budget in (1, 40, 10**9):
        policy = Policy(make_model(), SETTINGS, teacher=teacher, teacher_top_k=4)
        found, ours = policy.gradient(collate(rows), loss, budget=budget)
        assert found == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)
        assert (ours - gradient).norm() <= 1e-4 * gradient.norm()


def test_the_sampled_token_has_one_log_probability_among_the_likeliest_or_not(make_model, make_rows):
    batch = collate(make_rows(5))
    pack = packed(batch, range(5))
    logprobs, tokens, of_tokens = token_top_logprobs(make_model(), pack, 3)
    assert tokens.shape == of_tokens.shape == (*batch.tokens.shape, 3)
    likeliest = (tokens == batch.tokens[..., None]) & batch.trained[..., None]
    rows, places, at = likeliest.nonzero(as_tuple=True)
    torch.testing.assert_close(of_tokens[rows, places, at], logprobs[rows, places])
