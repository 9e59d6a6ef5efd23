from __future__ import annotations

import torch

from sleuth.learn.activation_boundary import Cut


def test_two_backward_passes_over_a_cut_give_the_gradient_of_one():
    weights = torch.tensor([2.0, 3.0], requires_grad=True)
    cut = Cut()
    cut.keep("squares", weights.square())
    cut.keep("unread", weights * 5)
    for factor in (1.0, 10.0):  # two branches, each backward by itself
        (cut["squares"].sum() * factor).backward()
    assert weights.grad is None
    torch.autograd.backward(*cut.owed())
    assert weights.grad.tolist() == [44.0, 66.0]


def test_what_is_made_again_is_not_taken_for_something_new():
    cut, first = Cut(), torch.ones(1, requires_grad=True) * 2
    cut.keep("twice", first)
    leaf = cut["twice"]
    cut.keep("twice", torch.ones(1, requires_grad=True) * 2)
    assert cut["twice"] is leaf
    leaf.sum().backward()
    [made], _ = cut.owed()
    assert made is first


def test_what_needs_no_gradient_is_owed_none():
    cut = Cut()
    cut.keep("frozen", torch.ones(3))
    assert not cut["frozen"].requires_grad
    assert cut.owed() == ([], [])
