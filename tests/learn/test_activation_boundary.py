from __future__ import annotations

import torch

from sleuth.learn.attention import ActivationBoundary


def test_two_backward_passes_across_a_boundary_give_the_gradient_of_one():
    weights = torch.tensor([2.0, 3.0], requires_grad=True)
    boundary = ActivationBoundary()
    boundary.keep("squares", weights.square())
    boundary.keep("unread", weights * 5)
    for factor in (1.0, 10.0):  # two branches, each backward by itself
        (boundary["squares"].sum() * factor).backward()
    assert weights.grad is None
    torch.autograd.backward(*boundary.outputs_and_grads())
    assert weights.grad.tolist() == [44.0, 66.0]


def test_an_output_computed_again_is_ignored():
    boundary, first = ActivationBoundary(), torch.ones(1, requires_grad=True) * 2
    boundary.keep("twice", first)
    leaf = boundary["twice"]
    boundary.keep("twice", torch.ones(1, requires_grad=True) * 2)
    assert boundary["twice"] is leaf
    leaf.sum().backward()
    [output], _ = boundary.outputs_and_grads()
    assert output is first


def test_an_output_without_gradient_gets_none():
    boundary = ActivationBoundary()
    boundary.keep("frozen", torch.ones(3))
    assert not boundary["frozen"].requires_grad
    assert boundary.outputs_and_grads() == ([], [])
