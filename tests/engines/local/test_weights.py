from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch
from torch import nn

from sleuth.engines.local import attention
from sleuth.engines.local.attention import DecodeWeights
from sleuth.kernels.matmul import HAS_ONEDNN

needs_onednn = pytest.mark.skipif(not HAS_ONEDNN, reason="this torch or processor has no oneDNN: nothing is packed")


@pytest.fixture(params=["transposed", pytest.param("packed", marks=needs_onednn)])
def laid_out(monkeypatch, request):
    """How the copies of weights as small as these are laid out."""
    monkeypatch.setattr(attention, "MIN_PACKED", 1 if request.param == "packed" else 2**17)


@pytest.mark.usefixtures("laid_out")
@pytest.mark.parametrize("rows", [0, 1, 7, 16, 17, 63, 130])
def test_copies_give_the_same_products_and_leave_the_model_as_it_was(rows):
    model = nn.Sequential(nn.Linear(8, 5), nn.Linear(5, 3, bias=False))
    inputs, before = torch.randn(1, rows, 8), {name: weight.clone() for name, weight in model.state_dict().items()}
    expected = model(inputs)
    with torch.inference_mode(), DecodeWeights(model).installed():
        torch.testing.assert_close(model(inputs), expected)
        assert "forward" in model[0].__dict__
    assert "forward" not in model[0].__dict__
    assert torch.equal(model(inputs), expected)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.usefixtures("laid_out")
def test_changed_weights_are_copied_again_after_clear():
    layer = nn.Linear(8, 5, bias=False)
    model = nn.Sequential(layer)
    copies = DecodeWeights(model)
    with torch.inference_mode():
        with copies.installed():
            assert model(torch.ones(1, 4, 8)).any()
        layer.weight.zero_()
        copies.clear()
        with copies.installed():
            assert not model(torch.ones(1, 4, 8)).any()


class Heads(nn.Module):
    """As attention has them; biases where `biased`, a letter a layer."""

    def __init__(self, biased: str = "") -> None:
        super().__init__()
        for name, width in (("q", 6), ("k", 4), ("v", 3)):
            setattr(self, f"{name}_proj", nn.Linear(8, width, bias=name in biased))

    def forward(self, inputs, of_query=None):
        return self.q_proj(inputs if of_query is None else of_query), self.k_proj(inputs), self.v_proj(inputs)


@pytest.mark.usefixtures("laid_out")
@pytest.mark.parametrize("biased", ["", "qkv", "k"])
def test_queries_keys_and_values_are_computed_in_one_product(biased):
    model, inputs, of_query = Heads(biased), torch.randn(3, 1, 7, 8), torch.randn(1, 2, 8)
    expected = [model(one) for one in inputs], model(inputs[0], of_query)
    copies, product = DecodeWeights(model), Mock(wraps=attention._product)
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(attention, "_product", product)
        with copies.installed():
            torch.testing.assert_close([model(one) for one in inputs], expected[0])
            torch.testing.assert_close(model(inputs[0], of_query), expected[1])
    assert [len(call.args[0]) for call in product.call_args_list] == [6 + 4 + 3]


@needs_onednn
def test_rows_are_padded_to_few_sizes_for_packed_weights(monkeypatch):
    monkeypatch.setattr(attention, "MIN_PACKED", 1)
    model, met = nn.Sequential(nn.Linear(8, 5)), set()
    product = torch.ops.mkldnn._linear_pointwise
    monkeypatch.setattr(
        torch.ops.mkldnn, "_linear_pointwise", lambda inputs, *rest: met.add(inputs.shape[1]) or product(inputs, *rest)
    )
    with torch.inference_mode(), DecodeWeights(model).installed():
        for rows in range(1, 257):
            assert model(torch.ones(1, rows, 8)).shape == (1, rows, 5)
    assert met == {*range(1, 17), *range(18, 33, 2), *range(36, 65, 4), *range(72, 129, 8), *range(144, 257, 16)}


def test_weights_other_than_fp32_are_not_copied():
    model = nn.Sequential(nn.Linear(8, 5, dtype=torch.bfloat16))
    with DecodeWeights(model).installed():
        assert "forward" not in model[0].__dict__
