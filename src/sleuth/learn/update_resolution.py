"""Which weights an update of a given size can change in the dtype they are stored in.

Between 2^e and 2^(e + 1), floats of p bits of precision are 2^(e + 1 - p) apart, and a change of less than half of that
is rounded away: in bfloat16 (p = 8) between |w| / 512 and |w| / 256. With a learning rate of 1e-7 and without master
weights, about one weight in a thousand of a typical model can change.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sleuth.learn.optim import Optimisation, scheduled_learning_rate

SAMPLE = 1_000_000
"""Weights in the sample, taken at a constant stride over the whole model."""


class UpdateResolution:
    """The distribution, over a model's weights, of the smallest update that changes the stored value."""

    def __init__(self, model: nn.Module) -> None:
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        stride = max(1, sum(weight.numel() for weight in weights) // SAMPLE)
        sample = torch.cat([half_spacing(weight.detach().flatten()[::stride]) for weight in weights])
        self.thresholds = sample.sort().values  # (n,) fp32

    def share(self, distance: float) -> float:
        """The share of weights that an update of size `distance` changes."""
        return int(torch.searchsorted(self.thresholds, distance)) / len(self.thresholds)

    def distance(self, share: float) -> float:
        """The size of the update that changes this share of the weights."""
        return float(self.thresholds[min(len(self.thresholds) - 1, int(share * len(self.thresholds)))])


def half_spacing(weights: Tensor) -> Tensor:
    """The smallest change that rounds each weight to another value of its dtype; fp32, in the shape of `weights`."""
    limits = torch.finfo(weights.dtype)
    _, exponents = torch.frexp(weights.float().abs().clamp(min=limits.smallest_normal))  # below it, spacing is constant
    return torch.exp2((exponents - 1).float()) * (limits.eps / 2)  # 2^(exponent - 1) <= |w| < 2^exponent


def step_distance(settings: Optimisation) -> float:
    """Approximate maximum change of a weight in one step: the learning rate, since AdamW normalises gradients and
    Muon's update is scaled to the same."""
    return max(scheduled_learning_rate(step, settings) for step in range(settings.steps))


def path_length(settings: Optimisation, steps: int) -> float:
    """Approximate maximum change of a weight in `steps` steps, if all have the same sign."""
    return sum(scheduled_learning_rate(step, settings) for step in range(steps))
