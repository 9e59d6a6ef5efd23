"""Gates and norms by compiled loops: values and gradients are those of the formula, in every shape, and the same by any
number of threads."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from sleuth.kernels import layers
from sleuth.kernels.layers import rms_norm, swish_product

EPSILON = 1e-6


def norm(inputs: Tensor, weight: Tensor) -> Tensor:
    return rms_norm(inputs, weight, EPSILON)


def norm_formula(inputs: Tensor, weight: Tensor) -> Tensor:
    return inputs * (inputs.square().mean(dim=-1, keepdim=True) + EPSILON).rsqrt() * weight


@dataclass(frozen=True)
class Loop:
    """A function of two tensors, its formula, the shape of the second for a first of this shape, and what its size must
    reach to be shared by threads."""

    ours: Callable[[Tensor, Tensor], Tensor]
    formula: Callable[[Tensor, Tensor], Tensor]
    second: Callable[[tuple[int, ...]], tuple[int, ...]]
    least: str

    def drawn(self, *shape: int) -> list[Tensor]:
        return [torch.randn(shape), torch.randn(self.second(shape))]


LOOPS = {
    "gate": Loop(swish_product, lambda gate, up: F.silu(gate) * up, lambda shape: shape, "MIN_PARALLEL_GATE"),
    "norm": Loop(norm, norm_formula, lambda shape: shape[-1:], "MIN_PARALLEL_NORM"),
}
each_loop = pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)


@pytest.fixture(params=[0, 2**30], ids=["shared", "alone"])
def least(request, monkeypatch) -> None:
    for loop in LOOPS.values():
        monkeypatch.setattr(layers, loop.least, request.param)


@settings(deadline=None)  # the first call compiles
@given(
    shape=st.lists(st.integers(0, 40), min_size=2, max_size=3),
    spread=st.sampled_from([1e-3, 1.0, 30.0, 1e3]),
    strided=st.booleans(),
    least=st.sampled_from([0, 2**30]),
    seed=st.integers(0, 2**16),
)
def test_values_and_gradients_of_a_gate_are_those_of_the_formula(shape, spread, strided, least, seed):
    draw = torch.Generator().manual_seed(seed)
    gate, up, arrived = (torch.randn(shape, generator=draw) for _ in range(3))
    gate = gate * spread
    if strided:
        gate, up, arrived = gate.mT, up.mT, arrived.mT
    leaves = [gate.requires_grad_(), up.requires_grad_()]
    with mock.patch.object(layers, "MIN_PARALLEL_GATE", least):
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


@settings(deadline=None)
@given(
    rows=st.integers(1, 70),
    heads=st.integers(1, 3),
    width=st.one_of(st.integers(1, 70), st.sampled_from([128, 1000, 2**14 + 3])),
    strided=st.booleans(),
    least=st.sampled_from([0, 2**30]),
    seed=st.integers(0, 2**16),
)
def test_values_and_gradients_of_a_norm_are_those_of_the_formula(rows, heads, width, strided, least, seed):
    draw = torch.Generator().manual_seed(seed)
    shape = (1, heads, rows, width)
    inputs, arrived = (torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(2))
    if strided:
        inputs, arrived = inputs.transpose(1, 2), arrived.transpose(1, 2)
    weight = torch.randn(width, generator=draw, dtype=torch.float64)
    leaves = [tensor.float().requires_grad_() for tensor in (inputs, weight)]
    assert leaves[0].is_contiguous() == inputs.is_contiguous()
    with mock.patch.object(layers, "MIN_PARALLEL_NORM", least):
        output = norm(*leaves)
        output.backward(arrived.float())
        with torch.no_grad():
            assert torch.equal(norm(*leaves), output)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = norm_formula(*exact)
    expected.backward(arrived.float().double())
    torch.testing.assert_close(output.double(), expected, rtol=2e-6, atol=1e-30)
    for ours, theirs in zip(leaves, exact, strict=True):
        # differences, or sums of both signs, of terms that are as large as this
        term = (arrived * expected / ours.detach()).abs().max().item()
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-5, atol=1e-5 * term)


def test_the_module_of_transformers_computes_the_same_norm():
    module, inputs = Qwen3RMSNorm(48, eps=1e-5), torch.randn(5, 7, 48)
    torch.nn.init.normal_(module.weight)
    ours = rms_norm(inputs, module.weight, module.variance_epsilon)
    torch.testing.assert_close(ours, module(inputs), rtol=2e-6, atol=0)


@each_loop
def test_only_the_two_inputs_are_saved_for_backward_and_without_gradients_nothing(loop):
    kept, inputs = [], [tensor.requires_grad_() for tensor in loop.drawn(9, 4)]
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.data_ptr()), lambda _: None):
        loop.ours(*inputs)
    assert kept == [tensor.data_ptr() for tensor in inputs]
    assert loop.ours(*(tensor.detach() for tensor in inputs)).grad_fn is None
    with torch.no_grad():
        assert loop.ours(*inputs).grad_fn is None


@pytest.mark.usefixtures("least")
@pytest.mark.parametrize("strange", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(("loop", "place"), [(LOOPS["gate"], 0), (LOOPS["gate"], 1), (LOOPS["norm"], 0)])
def test_non_finite_values_stay_in_their_row(loop, strange, place):
    """And in their place, of a gate; the gradient of a norm's weight is one of all rows."""
    inputs = loop.drawn(40, 33)
    inputs[place][17, 5] = strange
    output = loop.ours(*(tensor.requires_grad_() for tensor in inputs))
    output.sum().backward()
    others = torch.arange(40) != 17
    torch.testing.assert_close(output[others], loop.formula(*inputs)[others], rtol=2e-6, atol=1e-6)
    assert not output[17, 5].isfinite()
    assert output[others].isfinite().all()
    assert output[17, 5].isnan() or not math.isnan(strange)
    gradients = [tensor.grad for tensor in inputs]
    assert gradients[0][others].isfinite().all()
    assert not gradients[1 - place].isfinite().all()


@each_loop
@pytest.mark.parametrize("shape", [(70, 601), (5, 100, 300), (9, 5_000)])
def test_one_thread_and_two_compute_the_same_bytes(loop, shape, monkeypatch):
    monkeypatch.setattr(layers, loop.least, 0)
    inputs, arrived = loop.drawn(*shape), torch.randn(shape)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            leaves = [tensor.clone().requires_grad_() for tensor in inputs]
            output = loop.ours(*leaves)
            output.backward(arrived)
            found.append([output, *(leaf.grad for leaf in leaves)])
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(output, loop.formula(*inputs), rtol=1e-5, atol=1e-6)  # complete, too
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_a_weights_memory_can_be_resized_afterwards_as_fsdp_does():
    inputs, weight = torch.randn(9, 4), torch.randn(4, requires_grad=True)
    norm(inputs, weight).sum().backward()
    weight.untyped_storage().resize_(0)
    assert weight.untyped_storage().size() == 0
