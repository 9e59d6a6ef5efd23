"""Which weights a step can move in their dtype: by the spacing of floats, checked against torch's own rounding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sleuth.learn.master_weights import MasterWeights
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy
from sleuth.learn.update_resolution import UpdateResolution, half_spacing, path_length, step_distance


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
    assert (step_distance(settings), path_length(settings, 4), path_length(settings, 1)) == (1.0, 3.5, 0.5)


def test_without_masters_small_steps_are_lost_and_with_them_they_add_up() -> None:
    def moved(*, in_fp32: bool) -> float:
        model = nn.Linear(8, 8, bias=False).bfloat16()
        nn.init.constant_(model.weight, 1.0)
        masters = MasterWeights(model, in_fp32=in_fp32)
        for _ in range(100):
            for tensor in masters.tensors.values():
                tensor.data -= 1e-4
            masters.publish()
        return 1 - float(model.weight[0, 0].detach())

    assert moved(in_fp32=False) == 0
    assert moved(in_fp32=True) == pytest.approx(0.01, abs=2**-8)


def test_a_policy_without_masters_keeps_none(make_model) -> None:
    policy = Policy(make_model("qwen3").bfloat16(), Optimisation(steps=2, learning_rate=1e-3, master_weights=False))
    assert policy.masters.state_dict() == {}
    assert all(tensor.dtype == torch.bfloat16 for tensor in policy.masters.tensors.values())
