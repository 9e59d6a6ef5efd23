"""How far a weight has to be moved before its dtype can show it, and which weights a learning rate can move at all.

A float of p bits of precision stands 2^(e + 1 - p) from its neighbours, for a weight between 2^e and 2^(e + 1). What is
less than half of that is rounded away: in bfloat16 (p = 8) between |w| / 512 and |w| / 256. With a learning rate of
1e-7 and weights that are stepped themselves, about one weight in a thousand of a usual model can move.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sleuth.learn.optim import Optimisation, scheduled_learning_rate

SAMPLE = 1_000_000
"""Weights that are looked at, evenly over the whole model."""


class UpdateResolution:
    """What can move the weights of a model as it is stored."""

    def __init__(self, model: nn.Module) -> None:
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        stride = max(1, sum(weight.numel() for weight in weights) // SAMPLE)
        looked_at = torch.cat([half_spacing(weight.detach().flatten()[::stride]) for weight in weights])
        self.needed = looked_at.sort().values  # (n,) fp32

    def share(self, distance: float) -> float:
        """The share of the weights that change when they are moved by `distance`."""
        return int(torch.searchsorted(self.needed, distance)) / len(self.needed)

    def distance(self, share: float) -> float:
        """By how much weights have to be moved before this share of them changes."""
        return float(self.needed[min(len(self.needed) - 1, int(share * len(self.needed)))])


def half_spacing(weights: Tensor) -> Tensor:
    """What a weight has to be moved by, at least, before it is another number of its dtype; fp32, of any shape."""
    kind = torch.finfo(weights.dtype)
    _, exponents = torch.frexp(weights.float().abs().clamp(min=kind.smallest_normal))  # below it, spacing is constant
    return torch.exp2((exponents - 1).float()) * (kind.eps / 2)  # 2^(exponent - 1) <= |w| < 2^exponent


def step_distance(settings: Optimisation) -> float:
    """About how far one step moves a weight at most: AdamW divides a gradient by its own size, which leaves the
    learning rate, and Muon's update is scaled to the same."""
    return max(scheduled_learning_rate(step, settings) for step in range(settings.steps))


def path_length(settings: Optimisation, steps: int) -> float:
    """How far so many steps move a weight at most, if all of them go one way."""
    return sum(scheduled_learning_rate(step, settings) for step in range(steps))
