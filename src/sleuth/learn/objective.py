"""What one step of the policy gradient minimises: the parts of `losses` put together as a recipe asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from sleuth.learn import losses
from sleuth.learn.batch import Batch
from sleuth.learn.losses import KLKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """The policy-gradient loss of one step: clipped policy gain plus `beta` times the KL to the reference model.

    `old` names whose log-probabilities the ratio starts from: the learner's own, taken in the same pass (the ratio is
    then 1 and the clip never acts), or the sampler's. `tis_cap` weighs tokens by learner over sampler, truncated; it
    needs `old="learner"`, since with the sampler's the ratio already tells the difference. `temperature` is the one
    that was sampled at.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl: KLKind = "k3"
    beta: float = 0.0
    old: Literal["learner", "sampler"] = "learner"
    tis_cap: float | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.tis_cap is not None and self.old == "sampler":
            raise ValueError("tis_cap corrects the learner's ratio; it cannot be joined with old='sampler'")


def policy_objective(
    micro: Batch, logprobs: Tensor, reference: Tensor | None, loss: PolicyLoss
) -> tuple[Tensor, dict[str, Tensor]]:
    """The micro-batch's share of the policy loss, and per-token statistics. `logprobs`, `reference` are (B, T)."""
    learner, sampler = logprobs.detach(), micro.sampler_logprobs
    old = sampler if loss.old == "sampler" and sampler is not None else learner
    weights = micro.weights
    if loss.tis_cap is not None and sampler is not None:
        weights = weights * losses.truncated_importance_weights(learner, sampler, loss.tis_cap)
    bounds = {"low": loss.clip_low, "high": loss.clip_high}
    scalar = losses.clipped_policy_loss(logprobs, old, micro.advantages, weights, **bounds)
    statistics = {"clip_fraction": losses.clipped(learner, old, micro.advantages, **bounds).float()}
    if sampler is not None:
        statistics["mismatch_kl"] = losses.mismatch_kl(learner, sampler)
    if reference is not None:
        penalty = losses.kl_penalty(logprobs, reference, loss.kl)  # (B, T)
        scalar = scalar + loss.beta * (penalty * micro.weights).sum()
        statistics["kl"] = penalty.detach()
    return scalar, statistics
