from __future__ import annotations

import torch

from sleuth.learn.attention import ActivationBoundary


def test_two_backward_passes_over_a_cut_give_the_gradient_of_one():
    weights = torch.tensor([2.0, 3.0], requires_grad=True)
    boundary = ActivationBoundary()
    boundary.keep("squares", weights.square())
    boundary.keep("unread", weights * 5)
    for factor in (1.0, 10.0):  # two branches, each backward by itself
        (boundary["squares"].sum() * factor).backward()
    assert weights.grad is None
    torch.autograd.backward(*boundary.owed())
    assert weights.grad.tolist() == [44.0, 66.0]


def test_what_is_made_again_is_not_taken_for_something_new():
    boundary, first = ActivationBoundary(), torch.ones(1, requires_grad=True) * 2
    boundary.keep("twice", first)
    leaf = boundary["twice"]
    boundary.keep("twice", torch.ones(1, requires_grad=True) * 2)
    assert boundary["twice"] is leaf
    leaf.sum().backward()
    [made], _ = boundary.owed()
    assert made is first


def test_what_needs_no_gradient_is_owed_none():
    boundary = ActivationBoundary()
    boundary.keep("frozen", torch.ones(3))
    assert not boundary["frozen"].requires_grad
    assert boundary.owed() == ([], [])
