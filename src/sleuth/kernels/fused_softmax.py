"""The softmax of logits and its gradient, fused on a card: logits are read in their own dtype, computed in fp32, and
never stored in it."""

from __future__ import annotations

import torch
from torch import Tensor

from sleuth.kernels.fused import Fused, precision_of


@Fused
def softmax_figures(logits: Tensor, targets: Tensor, *, inverse_temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each row of logits (n, V) over a temperature: log-probability of its target, entropy, log-sum-exp; (n,)
    each."""
    exact = logits.to(precision_of(logits)) * inverse_temperature
    largest = exact.amax(dim=-1, keepdim=True)  # (n, 1)
    shifted = exact - largest
    exponentials = shifted.exp()
    total = exponentials.sum(dim=-1)
    entropy = total.log() - (shifted * exponentials).sum(dim=-1) / total
    lse = total.log() + largest[:, 0]
    at_target = logits.gather(1, targets[:, None])[:, 0].to(lse.dtype) * inverse_temperature
    return at_target - largest[:, 0] - total.log(), entropy, lse


@Fused
def write_logits_grad(
    logits: Tensor, targets: Tensor, lse: Tensor, scale: Tensor, *, inverse_temperature: Tensor
) -> None:
    """Overwrites logits (n, V) with `scale` (n,) times (one-hot minus softmax over the temperature)."""
    exact = logits.to(precision_of(logits)) * inverse_temperature
    softmax = (exact - lse[:, None]).exp()
    words = torch.arange(logits.shape[1], device=logits.device)
    one_hot = (words[None] == targets[:, None]).to(softmax.dtype)
    logits.copy_((one_hot - softmax) * scale[:, None])
