"""The gate of a feed-forward block: values and gradients are those of the formula, in every shape."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.kernels import compiled_layers
from sleuth.kernels.compiled_layers import swish_product

shared = pytest.mark.parametrize("least", [0, 2**30], ids=["shared", "alone"])


@settings(deadline=None)  # the first call compiles
@given(
    shape=st.lists(st.integers(0, 40), min_size=2, max_size=3),
    spread=st.sampled_from([1e-3, 1.0, 30.0, 1e3]),
    strided=st.booleans(),
    least=st.sampled_from([0, 2**30]),
    seed=st.integers(0, 2**16),
)
def test_values_and_gradients_are_those_of_the_formula(shape, spread, strided, least, seed):
    draw = torch.Generator().manual_seed(seed)
    gate, up, arrived = (torch.randn(shape, generator=draw) for _ in range(3))
    gate = gate * spread
    if strided:
        gate, up, arrived = gate.mT, up.mT, arrived.mT
    leaves = [gate.requires_grad_(), up.requires_grad_()]
    with mock.patch.object(compiled_layers, "MIN_PARALLEL_GATE", least):
        output = swish_product(*leaves)
        output.backward(arrived)
        with torch.no_grad():
            assert torch.equal(swish_product(*leaves), output)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = F.silu(exact[0]) * exact[1]
    expected.backward(arrived.double())
    # a gate that is nearly shut lets through what has fewer digits: at -30, 1e-12 of 30
    torch.testing.assert_close(output.double(), expected, rtol=2e-6, atol=1e-9)
    for ours, theirs in zip(leaves, exact, strict=True):
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("count", [1, 2**13, 2**13 + 1, 5 * 2**13 - 1])
def test_results_of_several_threads_are_complete(count):
    gate, up = torch.randn(count), torch.randn(count)
    with mock.patch.object(compiled_layers, "MIN_PARALLEL_GATE", 0):
        torch.testing.assert_close(swish_product(gate, up), F.silu(gate) * up, rtol=2e-6, atol=1e-9)


@shared
@pytest.mark.parametrize("wanted", [0, 1])
def test_only_what_needs_a_gradient_gets_one(least, wanted, monkeypatch):
    monkeypatch.setattr(compiled_layers, "MIN_PARALLEL_GATE", least)
    factors = [torch.randn(3, 4), torch.randn(3, 4)]
    expected = [factor.clone().requires_grad_() for factor in factors]
    (F.silu(expected[0]) * expected[1]).sum().backward()
    factors[wanted].requires_grad_()
    swish_product(*factors).sum().backward()
    torch.testing.assert_close(factors[wanted].grad, expected[wanted].grad)
    assert factors[1 - wanted].grad is None


def test_nothing_is_saved_for_backward_without_gradients():
    gate, up = torch.randn(3, 4), torch.randn(3, 4, requires_grad=True)
    assert swish_product(gate, up.detach()).grad_fn is None
    with torch.no_grad():
        assert swish_product(gate, up).grad_fn is None


def test_only_the_two_inputs_are_saved_for_backward():
    kept = []
    gate, up = torch.randn(9, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.data_ptr()), lambda _: None):
        swish_product(gate, up)
    assert kept == [gate.data_ptr(), up.data_ptr()]


@shared
@pytest.mark.parametrize("strange", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 1])
def test_non_finite_values_stay_non_finite_and_affect_no_others(least, strange, place, monkeypatch):
    monkeypatch.setattr(compiled_layers, "MIN_PARALLEL_GATE", least)
    factors = [torch.randn(50), torch.randn(50)]
    factors[place][17] = strange
    for factor in factors:
        factor.requires_grad_()
    output = swish_product(*factors)
    output.sum().backward()
    others = torch.arange(50) != 17
    gradients = [factor.grad for factor in factors]
    assert not output[17].isfinite()
    assert not gradients[1 - place][17].isfinite()
    assert all(values[others].isfinite().all() for values in (output, *gradients))
    if strange != strange:  # NaN
        assert output[17].isnan()


def test_one_thread_and_two_compute_the_same_bytes(monkeypatch):
    monkeypatch.setattr(compiled_layers, "MIN_PARALLEL_GATE", 0)
    factors, arrived = [torch.randn(70, 601), torch.randn(70, 601)], torch.randn(70, 601)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            leaves = [factor.clone().requires_grad_() for factor in factors]
            output = swish_product(*leaves)
            output.backward(arrived)
            found.append([output, *(leaf.grad for leaf in leaves)])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))
