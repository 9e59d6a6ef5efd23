"""What one step of the policy gradient minimises: the parts of `losses` put together as a recipe asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from sleuth.learn import losses
from sleuth.learn.batch import Batch
from sleuth.learn.losses import KLKind

POLICY_LOSSES = {
    "clip": (losses.clipped_policy_loss, losses.clipped),
    "cispo": (losses.cispo_policy_loss, losses.out_of_bounds),
}
"""Each kind's loss, and where its bounds act."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """The policy-gradient loss of one step: the policy's gain within bounds plus `beta` times the KL to the reference.

    `old_logprobs` names whose log-probabilities the ratio starts from. The learner's own are taken in the same pass:
    the ratio is then 1, no bound ever acts, and every `policy_loss` and `ratio` has the same gradient, A d log p. The
    sampler's make the ratio tell how far the learner is from what sampled the tokens: there the bounds act. `tis_cap`
    weighs tokens by learner over sampler, truncated; it needs `old_logprobs="learner"`, since with the sampler's the
    ratio already tells the difference. `ratio` is each token's own, or one for a whole row (GSPO, arXiv:2507.18071).
    `policy_loss` is PPO's clip (arXiv:1707.06347) or CISPO's capped weight (arXiv:2506.13585). `sequence_mask` silences
    rows that are further than this factor from what sampled them; the weights of the others stay what they were.
    `temperature` is the one that was sampled at.
    """

    policy_loss: Literal["clip", "cispo"] = "clip"
    ratio: Literal["token", "sequence"] = "token"
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl: KLKind = "k3"
    beta: float = 0.0
    old_logprobs: Literal["learner", "sampler"] = "learner"
    tis_cap: float | None = None
    sequence_mask: float | None = None
    temperature: float = 1.0

    @property
    def is_sum_over_tokens(self) -> bool:
        """Whether no token is looked at beside others of its row."""
        return self.ratio == "token" and self.sequence_mask is None

    def __post_init__(self) -> None:
        if self.tis_cap is not None and self.old_logprobs == "sampler":
            raise ValueError("tis_cap corrects the learner's ratio; it cannot be joined with old_logprobs='sampler'")


def policy_objective(
    micro: Batch, logprobs: Tensor, reference: Tensor | None, loss: PolicyLoss
) -> tuple[Tensor, dict[str, Tensor]]:
    """The micro-batch's share of the policy loss, and per-token statistics. `logprobs`, `reference` are (B, T)."""
    learner, sampler = logprobs.detach(), micro.sampler_logprobs
    old_logprobs = sampler if loss.old_logprobs == "sampler" and sampler is not None else learner
    if loss.ratio == "sequence":
        old_logprobs = losses.sequence_old_logprobs(learner, old_logprobs, micro.trained)
    weights = micro.weights
    if loss.tis_cap is not None and sampler is not None:
        weights = weights * losses.truncated_importance_weights(learner, sampler, loss.tis_cap)
    kept = None
    if loss.sequence_mask is not None and sampler is not None:
        kept = losses.sequence_mask(learner, sampler, micro.trained, loss.sequence_mask)  # (B, T)
        weights = weights * kept
    policy_loss, bounded = POLICY_LOSSES[loss.policy_loss]
    bounds = {"low": loss.clip_low, "high": loss.clip_high}
    scalar = policy_loss(logprobs, old_logprobs, micro.advantages, weights, **bounds)
    statistics = {"clip_fraction": bounded(learner, old_logprobs, micro.advantages, **bounds).float()}
    if kept is not None:
        statistics["masked_fraction"] = 1 - kept
    if sampler is not None:
        statistics["sampler_learner_kl"] = losses.sampler_learner_kl(learner, sampler)
    if reference is not None:
        penalty = losses.kl_penalty(logprobs, reference, loss.kl)  # (B, T)
        scalar = scalar + loss.beta * (penalty * micro.weights).sum()
        statistics["kl"] = penalty.detach()
    return scalar, statistics
