from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sleuth.kernels import matmul
from sleuth.kernels.matmul import (
    HAS_ONEDNN,
    JoinedProduct,
    by_onednn,
    can_be_joined,
    linear,
    multiply,
    onednn_linears,
    weight_gradient,
)

needs_onednn = pytest.mark.skipif(not HAS_ONEDNN, reason="this torch or processor has no oneDNN to compare with")


@pytest.fixture(autouse=True)
def at_any_size(monkeypatch):
    monkeypatch.setattr(matmul, "LEAST_WORK", 1)


@given(
    rows=st.integers(1, 70),
    inner=st.integers(1, 70),
    outer=st.integers(1, 70),
    biased=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_values_and_gradients_are_those_of_torch(rows, inner, outer, biased, seed):
    draw = torch.Generator().manual_seed(seed)
    inputs, weight, arrived = (
        torch.randn(shape, generator=draw) for shape in ((1, rows, inner), (outer, inner), (1, rows, outer))
    )
    leaves = [inputs, weight, *([torch.randn(outer, generator=draw)] if biased else [])]
    found = []
    for function in (linear, F.linear):
        own = [leaf.clone().requires_grad_() for leaf in leaves]
        output = function(*own)
        output.backward(arrived)
        found.append([output.detach(), *(leaf.grad for leaf in own)])
    for ours, theirs in zip(*found, strict=True):
        # fp32 sums of at most 70 products of numbers near 1, in another order
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=5e-5)


def test_weights_of_any_strides_are_multiplied():
    inputs, weight = torch.randn(33, 16), torch.randn(16, 24)
    torch.testing.assert_close(multiply(inputs, weight.T), inputs @ weight, rtol=1e-5, atol=1e-5)


@needs_onednn
@pytest.mark.parametrize(("outer", "inner"), [(768, 256), (256, 768)])
@pytest.mark.parametrize("layout", ["whole", "columns of a wider one", "transposed"])
def test_the_gradient_of_a_weight_is_the_same_by_onednn(outer, inner, layout, monkeypatch):
    draw = torch.Generator().manual_seed(0)
    inputs, arrived = torch.randn(500, inner, generator=draw), torch.randn(500, 2 * outer, generator=draw)
    arrived = {
        "whole": arrived[:, :outer].contiguous(),
        "columns of a wider one": arrived[:, outer:],
        "transposed": arrived[:, :outer].T.contiguous().T,
    }[layout]
    expected = arrived.double().T @ inputs.double()
    called = []
    monkeypatch.setattr(matmul, "by_onednn", lambda *given: called.append(given) or by_onednn(*given))
    for slow in (True, False):
        monkeypatch.setattr(matmul, "MKL_IS_SLOW", slow)
        found = weight_gradient(arrived, inputs).double()
        assert (found - expected).norm() <= 1e-6 * expected.norm()
        assert len(called) == 1
    assert called[0][1].T.is_contiguous()  # with another second operand oneDNN takes its slowest way


@needs_onednn
def test_linear_layers_use_onednn_in_the_context_only():
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2, bias=False))
    inputs = torch.randn(7, 8)
    expected = model(inputs)
    with onednn_linears(model):
        output = model(inputs)
        with onednn_linears(model):
            model(inputs)
        assert "forward" in model[0].__dict__  # the inner one leaves it to the outer
    assert type(output.grad_fn).__name__ == "_LinearBackward"
    assert not any("forward" in module.__dict__ for module in model.modules())
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_products_of_other_dtypes_are_left_to_torch(dtype):
    inputs, weight = torch.randn(5, 4, dtype=dtype), torch.randn(3, 4, dtype=dtype)
    assert torch.equal(linear(inputs, weight), F.linear(inputs, weight))


@pytest.mark.parametrize("columns", [2, 2**12])
@pytest.mark.parametrize("least", [1, 2**27])
def test_outputs_are_written_to_the_given_space(least, columns, monkeypatch):
    monkeypatch.setattr(matmul, "LEAST_WORK", least)
    monkeypatch.setattr(matmul, "COLUMNS", columns)
    inputs, weight, bias = torch.randn(5, 4), torch.randn(3, 4), torch.randn(3)
    output = multiply(inputs, weight, bias, space=torch.empty(9, 3))
    torch.testing.assert_close(output, F.linear(inputs, weight, bias))


def test_a_joined_product_is_those_of_its_weights_which_become_parts_of_one_buffer():
    draw = torch.Generator().manual_seed(0)
    layers = [nn.Linear(5, width, bias=False) for width in (3, 7)]
    inputs, arrived = torch.randn(11, 5, generator=draw, requires_grad=True), torch.randn(11, 10, generator=draw)
    leaves = [inputs, *(layer.weight for layer in layers)]
    expected = torch.cat([layer(inputs) for layer in layers], dim=1)
    gradients = torch.autograd.grad(expected, leaves, arrived)
    assert can_be_joined(*layers)
    for _ in range(2):  # the second time they are joined already
        output = JoinedProduct.apply(*leaves)
        # fp32 sums of at most 10 products of numbers near 1, in another order
        torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-6)
        for ours, theirs in zip(torch.autograd.grad(output, leaves, arrived), gradients, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-5)
    assert layers[1].weight.data_ptr() == layers[0].weight.data_ptr() + 4 * layers[0].weight.numel()


def test_layers_with_biases_or_hooks_are_not_joined():
    plain, hooked = nn.Linear(5, 3, bias=False), nn.Linear(5, 3, bias=False)
    hooked.register_forward_hook(lambda module, arguments, output: output)
    assert not can_be_joined(plain, nn.Linear(5, 3))
    assert not can_be_joined(plain, hooked)
