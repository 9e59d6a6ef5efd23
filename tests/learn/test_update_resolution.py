"""Which weights a step can move in their dtype: by the spacing of floats, checked against torch's own rounding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sleuth.learn.master_weights import MasterWeights
from sleuth.learn.optim import Optimisation, UpdateResolution, half_spacing, path_length


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_changes_below_half_the_spacing_are_rounded_away(dtype: torch.dtype) -> None:
    weights = (torch.randn(2000, generator=torch.Generator().manual_seed(0)) * 0.03).to(dtype)
    away = half_spacing(weights).double() * weights.sign().double()  # away from 0 the spacing is the same or larger
    exact = weights.double()
    assert ((exact + 0.98 * away).to(dtype) == weights).all()
    assert ((exact + 1.02 * away).to(dtype) != weights).all()


def test_half_the_spacing_of_bfloat16_is_a_512th_to_a_256th() -> None:
    weights = torch.tensor([1.0, -1.5, 1.9921875, 2.0], dtype=torch.bfloat16)
    assert half_spacing(weights).tolist() == [2**-8, 2**-8, 2**-8, 2**-7]
    assert half_spacing(torch.zeros(1, dtype=torch.bfloat16)) < 1e-39


def test_a_rate_of_1e_7_changes_a_thousandth_of_typical_weights() -> None:
    model = nn.Linear(1000, 1000, bias=False)
    with torch.no_grad():
        model.weight.normal_(0, 0.03, generator=torch.Generator().manual_seed(1))
    resolution = UpdateResolution(model.bfloat16())
    assert resolution.share(1e-7) == pytest.approx(0.0009, abs=0.0003)  # as simulated for the published runs
    assert resolution.share(1e-6) == pytest.approx(0.013, abs=0.002)
    assert resolution.share(resolution.distance(0.01)) == pytest.approx(0.01, abs=0.005)
    assert UpdateResolution(model.float()).share(1e-7) == 1


def test_the_path_length_is_the_sum_of_learning_rates() -> None:
    settings = Optimisation(steps=4, learning_rate=1.0, warmup_steps=2)
    assert (path_length(settings, 4), path_length(settings, 1)) == (3.5, 0.5)


def test_small_steps_add_up_in_the_masters() -> None:
    model = nn.Linear(8, 8, bias=False).bfloat16()
    nn.init.constant_(model.weight, 1.0)
    masters = MasterWeights(model)
    for _ in range(100):
        for tensor in masters.tensors.values():
            tensor.data -= 1e-4
        masters.publish()
    assert 1 - float(model.weight[0, 0].detach()) == pytest.approx(0.01, abs=2**-8)
