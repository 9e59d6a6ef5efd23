"""Distillation on the policy's own rows, from the sampled tokens or a teacher's likeliest ones: the losses by hand, and
gradients against autograd of the plain formula, through the prefix tree."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from sleuth.learn.batch import collate
from sleuth.learn.logprobs import token_top_logprobs
from sleuth.learn.losses import teacher_loss, top_teacher_loss
from sleuth.learn.objective import PolicyLoss
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy, frozen_copy
from sleuth.learn.prefix_tree import packed

SETTINGS = Optimisation(steps=10, learning_rate=1e-3)


def test_the_loss_of_two_tokens_by_hand():
    logprobs = torch.tensor([[-1.0, -2.0, -0.5]], requires_grad=True)
    loss = teacher_loss(logprobs, torch.tensor([[-3.0, -1.5, -9.0]]), torch.tensor([[0.5, 0.25, 0.0]]))
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * 2.0**2 / 2 + 0.25 * 0.5**2 / 2)
    assert logprobs.grad.tolist() == [[pytest.approx(0.5 * 2.0), pytest.approx(0.25 * -0.5), 0.0]]


@pytest.mark.parametrize("seed", range(5))
def test_the_expected_gradient_is_that_of_the_reverse_kl(seed):
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(7, dtype=torch.float64, generator=draw, requires_grad=True)
    policy, teacher = logits.log_softmax(-1), torch.randn(7, dtype=torch.float64, generator=draw).log_softmax(-1)
    (whole,) = torch.autograd.grad((policy.exp() * (policy - teacher)).sum(), logits, retain_graph=True)
    # Each token as often as the policy samples it.
    (sampled,) = torch.autograd.grad(teacher_loss(policy, teacher, policy.detach().exp()), logits)
    torch.testing.assert_close(sampled, whole)


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


def guided(rows, *guidance):
    return [dataclasses.replace(row, guidance=value) for row, value in zip(rows, guidance, strict=True)]


def divergence(policy, teacher, token, k):
    """What a place with this guidance of 1 loses, of two distributions (V,): over the sampled token, or over the
    teacher's k likeliest tokens and the rest."""
    if k is None:
        return (policy[token].log() - teacher[token].log()) ** 2 / 2
    top = teacher.topk(k).indices
    p, q = policy[top], teacher[top]
    rest, taught_rest = 1 - p.sum(), 1 - q.sum()
    return (p * (p / q).log()).sum() + rest * (rest / taught_rest).log()


@pytest.mark.parametrize("k", [None, 4])
@pytest.mark.parametrize("advantage", [0.0, 1.0])
def test_the_loss_is_what_a_loop_over_rows_and_tokens_gives(make_model, make_rows, advantage, k):
    model, teacher = make_model(), frozen_copy(make_model(seed=1))
    rows = guided(make_rows(5), 0.0, 0.5, 2.0, 0.0, 1.0)
    rows = [dataclasses.replace(row, advantage=row.advantage * advantage) for row in rows]
    expected, gaps, count = torch.zeros(()), [], sum(sum(row.trained) for row in rows)
    for row in rows:
        ours, theirs = (net(torch.tensor([row.tokens])).logits[0].softmax(-1) for net in (model, teacher))
        for at in range(1, len(row.tokens)):
            if row.trained[at]:
                policy, taught, token = ours[at - 1], theirs[at - 1].detach(), row.tokens[at]
                logprob = policy[token].log()
                expected = expected - row.advantage * (logprob - logprob.detach()).exp() / count
                expected = expected + row.guidance * divergence(policy, taught, token, k) / count
                if advantage or row.guidance:
                    gap = (taught[token].log() - logprob).item()
                    gaps.append(math.expm1(gap) - gap)
    expected.backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    loss = PolicyLoss(old_logprobs="learner")
    for budget in (1, 40, 10**9):
        policy = Policy(make_model(), SETTINGS, teacher=teacher, teacher_top_k=k)
        found, ours = policy.gradient(collate(rows), loss, budget=budget)
        assert found == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)
        assert (ours - gradient).norm() <= 1e-4 * gradient.norm()
    if k is None:
        update = Policy(make_model(), SETTINGS, teacher=teacher).update(collate(rows), loss, budget=40)
        assert update.teacher_kl == pytest.approx(sum(gaps) / len(gaps), rel=1e-4)
        assert update.tokens_trained == len(gaps)


def test_the_sampled_token_has_one_log_probability_among_the_likeliest_or_not(make_model, make_rows):
    batch = collate(make_rows(5))
    pack = packed(batch, range(5))
    logprobs, tokens, of_tokens = token_top_logprobs(make_model(), pack, 3)
    assert tokens.shape == of_tokens.shape == (*batch.tokens.shape, 3)
    likeliest = (tokens == batch.tokens[..., None]) & batch.trained[..., None]
    rows, places, at = likeliest.nonzero(as_tuple=True)
    torch.testing.assert_close(of_tokens[rows, places, at], logprobs[rows, places])


def test_a_teacher_reads_a_shared_prefix_once_keeps_to_the_budget_and_is_not_asked_without_guidance(
    make_model, make_rows
):
    teacher, read = frozen_copy(make_model(seed=1)), []
    teacher.get_input_embeddings().register_forward_hook(lambda module, args, output: read.append(args[0].numel()))
    plain, batch = collate(make_rows(9)), collate(guided(make_rows(9), *[1.0] * 9))
    assert Policy(make_model(), SETTINGS, teacher=teacher).update(plain, PolicyLoss(), budget=40).teacher_kl is None
    assert read == []
    Policy(make_model(), SETTINGS, teacher=teacher).update(batch, PolicyLoss(), budget=10**9)
    assert len(read) == 1
    assert read[0] < batch.tokens_dense
    read.clear()
    Policy(make_model(), SETTINGS, teacher=teacher).update(batch, PolicyLoss(), budget=40)
    assert len(read) > 1
    assert max(read) <= 40
