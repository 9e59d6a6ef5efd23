"""On-policy distillation: the loss by hand, its gradient against that of the whole KL, and through the prefix tree."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from sleuth.learn.batch import collate
from sleuth.learn.losses import PolicyLoss, teacher_loss
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy, frozen_copy

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


def guided(rows, *guidance):
    return [dataclasses.replace(row, guidance=value) for row, value in zip(rows, guidance, strict=True)]


@pytest.mark.parametrize("advantage", [0.0, 1.0])
def test_the_loss_is_what_a_loop_over_rows_and_tokens_gives(make_model, make_rows, advantage):
    model, teacher = make_model(), frozen_copy(make_model(seed=1))
    guidance = (0.0, 0.5, 2.0, 0.0, 1.0)
    rows = [dataclasses.replace(row, advantage=row.advantage * advantage) for row in guided(make_rows(5), *guidance)]
    expected, divergence, count = torch.zeros(()), 0.0, sum(sum(row.trained) for row in rows)
    computed = 0
    for row in rows:
        ids = torch.tensor([row.tokens])
        ours, theirs = (net(ids).logits[0].log_softmax(-1) for net in (model, teacher))
        for token in range(1, len(row.tokens)):
            if row.trained[token]:
                logprob, told = (told[token - 1, row.tokens[token]] for told in (ours, theirs))
                expected = expected - row.advantage * (logprob - logprob.detach()).exp() / count
                expected = expected + row.guidance * (logprob - told.detach()) ** 2 / 2 / count
                if advantage or row.guidance:
                    gap = (told - logprob).item()
                    divergence += torch.tensor(gap).expm1().item() - gap
                    computed += 1
    expected.backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    loss = PolicyLoss(old_logprobs="learner")
    for budget in (1, 40, 10**9):
        policy = Policy(make_model(), SETTINGS, teacher=teacher)
        found, ours = policy.gradient(collate(rows), loss, budget=budget)
        assert found == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
        assert (ours - gradient).norm() <= 1e-5 * gradient.norm()
    update = Policy(make_model(), SETTINGS, teacher=teacher).update(collate(rows), loss, budget=40)
    assert update.teacher_kl == pytest.approx(divergence / computed, rel=1e-4)
    assert update.tokens_trained == computed


def test_rows_without_guidance_ask_no_teacher(make_model, make_rows):
    teacher, asked = frozen_copy(make_model(seed=1)), []
    teacher.get_input_embeddings().register_forward_hook(lambda module, args, output: asked.append(args[0].numel()))
    batch = collate(make_rows(5))
    assert batch.guidance is None
    update = Policy(make_model(), SETTINGS, teacher=teacher).update(batch, PolicyLoss(), budget=40)
    assert update.teacher_kl is None
    assert not asked


def test_the_teacher_reads_a_shared_prefix_once_and_keeps_to_the_budget(make_model, make_rows):
    teacher, read = frozen_copy(make_model(seed=1)), []
    teacher.get_input_embeddings().register_forward_hook(lambda module, args, output: read.append(args[0].numel()))
    batch = collate(guided(make_rows(9), *[1.0] * 9))
    Policy(make_model(), SETTINGS, teacher=teacher).update(batch, PolicyLoss(), budget=10**9)
    assert len(read) == 1
    assert read[0] < batch.tokens_dense
    read.clear()
    Policy(make_model(), SETTINGS, teacher=teacher).update(batch, PolicyLoss(), budget=40)
    assert len(read) > 1
    assert max(read) <= 40
