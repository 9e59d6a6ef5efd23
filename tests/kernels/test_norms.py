"""Norms: values and gradients are those of the formula, in every shape, and the same by any number of threads."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from sleuth.kernels import compiled_layers
from sleuth.kernels.compiled_layers import rms_norm

EPSILON = 1e-6
shared = pytest.mark.parametrize("least", [0, 2**30], ids=["shared", "alone"])


def formula(inputs: Tensor, weight: Tensor) -> Tensor:
    return inputs * (inputs.square().mean(dim=-1, keepdim=True) + EPSILON).rsqrt() * weight


@settings(deadline=None)  # the first call compiles
@given(
    rows=st.integers(1, 70),
    heads=st.integers(1, 3),
    width=st.one_of(st.integers(1, 70), st.sampled_from([128, 1000, 2**14 + 3])),
    strided=st.booleans(),
    least=st.sampled_from([0, 2**30]),
    seed=st.integers(0, 2**16),
)
def test_values_and_gradients_are_those_of_the_formula(rows, heads, width, strided, least, seed):
    draw = torch.Generator().manual_seed(seed)
    shape = (1, heads, rows, width)
    inputs, arrived = (torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(2))
    if strided:
        inputs, arrived = inputs.transpose(1, 2), arrived.transpose(1, 2)
    weight = torch.randn(width, generator=draw, dtype=torch.float64)
    leaves = [tensor.float().requires_grad_() for tensor in (inputs, weight)]
    assert leaves[0].is_contiguous() == inputs.is_contiguous()
    with mock.patch.object(compiled_layers, "MIN_PARALLEL_NORM", least):
        output = rms_norm(*leaves, EPSILON)
        output.backward(arrived.float())
        with torch.no_grad():
            assert torch.equal(rms_norm(*leaves, EPSILON), output)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = formula(*exact)
    expected.backward(arrived.float().double())
    torch.testing.assert_close(output.double(), expected, rtol=2e-6, atol=1e-30)
    for ours, theirs in zip(leaves, exact, strict=True):
        # differences, or sums of both signs, of terms that are as large as this
        term = (arrived * expected / ours.detach()).abs().max().item()
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-5, atol=1e-5 * term)


def test_the_module_of_transformers_computes_the_same():
    norm, inputs = Qwen3RMSNorm(48, eps=1e-5), torch.randn(5, 7, 48)
    torch.nn.init.normal_(norm.weight)
    ours = rms_norm(inputs, norm.weight, norm.variance_epsilon)
    torch.testing.assert_close(ours, norm(inputs), rtol=2e-6, atol=0)


@shared
@pytest.mark.parametrize("wanted", ["inputs", "weight"])
def test_only_what_needs_a_gradient_gets_one(least, wanted, monkeypatch):
    monkeypatch.setattr(compiled_layers, "MIN_PARALLEL_NORM", least)
    both = {"inputs": torch.randn(40, 6), "weight": torch.randn(6)}
    expected = {name: tensor.clone().requires_grad_() for name, tensor in both.items()}
    formula(**expected).sum().backward()
    both[wanted].requires_grad_()
    rms_norm(**both, epsilon=EPSILON).sum().backward()
    torch.testing.assert_close(both.pop(wanted).grad, expected[wanted].grad, rtol=1e-4, atol=1e-5)
    [other] = both.values()
    assert other.grad is None


def test_nothing_is_saved_for_backward_without_gradients():
    inputs, weight = torch.randn(3, 4), torch.randn(4, requires_grad=True)
    assert rms_norm(inputs, weight.detach(), EPSILON).grad_fn is None
    with torch.no_grad():
        assert rms_norm(inputs, weight, EPSILON).grad_fn is None


def test_only_inputs_and_weight_are_saved_for_backward():
    kept = []
    inputs, weight = torch.randn(9, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.data_ptr()), lambda _: None):
        rms_norm(inputs, weight, EPSILON)
    assert kept == [inputs.data_ptr(), weight.data_ptr()]


def test_a_weights_memory_can_be_resized_afterwards_as_fsdp_does():
    inputs, weight = torch.randn(9, 4), torch.randn(4, requires_grad=True)
    rms_norm(inputs, weight, EPSILON).sum().backward()
    weight.untyped_storage().resize_(0)
    assert weight.untyped_storage().size() == 0


@shared
@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 5)])
def test_zero_rows_give_zero_rows(least, shape, monkeypatch):
    monkeypatch.setattr(compiled_layers, "MIN_PARALLEL_NORM", least)
    inputs, weight = torch.randn(shape, requires_grad=True), torch.randn(5, requires_grad=True)
    output = rms_norm(inputs, weight, EPSILON)
    output.sum().backward()
    assert output.shape == inputs.grad.shape == shape
    assert torch.equal(weight.grad, torch.zeros(5))


def test_inputs_may_be_a_single_row():
    row, weight = torch.randn(5), torch.randn(5)
    torch.testing.assert_close(rms_norm(row, weight, EPSILON), formula(row, weight))


@shared
@pytest.mark.parametrize("strange", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_values_stay_in_their_row(least, strange, monkeypatch):
    monkeypatch.setattr(compiled_layers, "MIN_PARALLEL_NORM", least)
    inputs, weight = torch.randn(40, 33), torch.randn(33)
    inputs[17, 5] = strange
    output = rms_norm(inputs.requires_grad_(), weight.requires_grad_(), EPSILON)
    output.sum().backward()
    torch.testing.assert_close(output, formula(inputs, weight), equal_nan=True)
    assert inputs.grad[17].isnan().all()
    assert inputs.grad[torch.arange(40) != 17].isfinite().all()
    assert weight.grad.isnan().any()


@pytest.mark.parametrize("shape", [(700, 33), (5, 100, 300), (9, 5_000)])
def test_one_thread_and_two_compute_the_same_bytes(shape, monkeypatch):
    monkeypatch.setattr(compiled_layers, "MIN_PARALLEL_NORM", 0)
    inputs, weight, arrived = torch.randn(shape), torch.randn(shape[-1]), torch.randn(shape)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            leaves = [tensor.clone().requires_grad_() for tensor in (inputs, weight)]
            output = rms_norm(*leaves, EPSILON)
            output.backward(arrived)
            found.append([output, *(leaf.grad for leaf in leaves)])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))
