from __future__ import annotations

import torch
from torch import nn

from sleuth.engines.weights import TurnedWeights


def test_turned_weights_give_the_same_products_and_leave_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(8, 5), nn.Linear(5, 3, bias=False))
    inputs, before = torch.randn(4, 8), {name: weight.clone() for name, weight in model.state_dict().items()}
    expected = model(inputs)
    turned = TurnedWeights(model)
    with torch.inference_mode(), turned.at_work():
        torch.testing.assert_close(model(inputs), expected)
        assert model[0].weight.stride() == (1, 5)
    assert model[0].weight is dict(model.named_parameters())["0.weight"]
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_weights_that_have_changed_are_turned_again_once_that_is_said():
    model = nn.Sequential(nn.Linear(8, 5))
    turned = TurnedWeights(model)
    with turned.at_work():
        pass
    with torch.no_grad():
        model[0].weight.zero_()
    turned.forget()
    with turned.at_work():
        assert not model[0].weight.any()


def test_what_is_no_fp32_is_not_copied():
    model = nn.Sequential(nn.Linear(8, 5, dtype=torch.bfloat16))
    with TurnedWeights(model).at_work():
        assert model[0].weight is model[0]._parameters["weight"]
