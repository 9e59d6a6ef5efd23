"""What one optimiser step minimises: a policy gradient, cross-entropy, or an objective of a family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from torch import Tensor

from sleuth.learn import losses
from sleuth.learn.batch import Batch
from sleuth.learn.losses import KLKind
from sleuth.learn.prefix_tree import Pack

POLICY_LOSSES = {
    "clip": (losses.clipped_policy_loss, losses.clipped),
    "cispo": (losses.cispo_policy_loss, losses.out_of_bounds),
}
"""Each kind's loss, and where its bounds act."""


class AttentionLoss(Protocol):
    """One more loss of a pass over a pack, of what attention computes in it."""

    def observe(self, layer: Any, query: Tensor, key: Tensor, scale: float) -> None:
        """Called in each layer (see `sleuth.learn.attention.Observe`)."""
        ...

    def loss(self, part: Pack) -> tuple[Tensor, dict[str, Tensor]]:
        """As `Objective.__call__`, after the pass."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective(ABC):
    """The loss of one step as a function of log-probabilities (a `TokenLoss`), which are taken at `temperature`."""

    temperature: float = 1.0

    reads_reference: ClassVar[bool] = False
    """Whether the log-probabilities of the policy's reference model, if it has one, are computed."""
    rows_together: ClassVar[int] = 1
    """Rows that must be in the same pass."""

    @abstractmethod
    def __call__(self, rows: Batch, logprobs: Tensor, reference: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """The share of these rows in the loss of the step, and statistics of each token by name. `logprobs`, those of
        the `reference` model and the statistics are (R, T)."""

    @property
    def is_sum_over_tokens(self) -> bool:
        """Whether the loss of a token depends on no other token of its row; otherwise rows are computed whole."""
        return True

    def attention_loss(self) -> AttentionLoss | None:
        """A loss of the attention of the next pass, if there is one; then rows are computed whole."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss(Objective):
    """The policy-gradient loss: the policy's gain within bounds plus `beta` times the KL to the reference, plus the
    `guidance` of each token times its KL to the teacher (`losses.teacher_loss`, or `losses.top_teacher_loss` where the
    batch has the teacher's likeliest tokens, which only a sum over tokens can follow).

    `old_logprobs` names whose log-probabilities the ratio starts from. The learner's own are taken in the same pass:
    the ratio is then 1, no bound ever acts, and every `policy_loss` and `ratio` has the same gradient, A d log p. With
    the sampler's, the ratio measures how far the learner is from what sampled the tokens, and the bounds act. `tis_cap`
    weights tokens by learner over sampler, truncated; it needs `old_logprobs="learner"`, since with the sampler's the
    ratio already contains the difference. `ratio` is each token's own, or one for a whole row (GSPO, arXiv:2507.18071).
    `policy_loss` is PPO's clip (arXiv:1707.06347) or CISPO's capped weight (arXiv:2506.13585).
    `temperature` is the sampling temperature. A `function` replaces the one that `policy_loss` names; it is called as
    those of `sleuth.learn.losses` are, and always sees whole rows.
    """

    policy_loss: Literal["clip", "cispo"] = "clip"
    ratio: Literal["token", "sequence"] = "token"
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl: KLKind = "k3"
    beta: float = 0.0
    old_logprobs: Literal["learner", "sampler"] = "learner"
    tis_cap: float | None = None
    function: Callable[..., Tensor] | None = None

    reads_reference: ClassVar[bool] = True

    @property
    def is_sum_over_tokens(self) -> bool:
        return self.ratio == "token" and self.function is None

    @property
    def needs_sampler(self) -> bool:
        """Whether the batch must have the sampler's log-probabilities."""
        return self.old_logprobs == "sampler" or self.tis_cap is not None

    def __post_init__(self) -> None:
        if self.tis_cap is not None and self.old_logprobs == "sampler":
            raise ValueError("tis_cap corrects the learner's ratio; it cannot be joined with old_logprobs='sampler'")

    def __call__(self, rows: Batch, logprobs: Tensor, reference: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        learner, sampler = logprobs.detach(), rows.sampler_logprobs
        old_logprobs = sampler if self.old_logprobs == "sampler" and sampler is not None else learner
        if self.ratio == "sequence":
            old_logprobs = losses.sequence_old_logprobs(learner, old_logprobs, rows.trained)
        weights = rows.weights
        if self.tis_cap is not None and sampler is not None:
            weights = weights * losses.truncated_importance_weights(learner, sampler, self.tis_cap)
        policy_loss, bounded = POLICY_LOSSES[self.policy_loss]
        policy_loss = self.function or policy_loss
        bounds = {"low": self.clip_low, "high": self.clip_high}
        scalar = policy_loss(logprobs, old_logprobs, rows.advantages, weights, **bounds)
        statistics = {"clip_fraction": bounded(learner, old_logprobs, rows.advantages, **bounds).float()}
        if sampler is not None:
            statistics["sampler_learner_kl"] = losses.sampler_learner_kl(learner, sampler)
        if reference is not None:
            penalty = losses.kl_penalty(logprobs, reference, self.kl)  # (R, T)
            scalar = scalar + self.beta * (penalty * rows.weights).sum()
            statistics["kl"] = penalty.detach()
        if rows.teacher_logprobs is not None and rows.guidance is not None:
            if rows.teacher_top is None:
                scalar = scalar + losses.teacher_loss(logprobs, rows.teacher_logprobs, rows.weights * rows.guidance)
            elif (top := rows.teacher_top).of_policy is not None:  # else only the statistics are read
                scalar = scalar + losses.top_teacher_loss(top.of_policy, top.logprobs, rows.weights * rows.guidance)
            statistics["teacher_kl"] = losses.kl_penalty(learner, rows.teacher_logprobs, "k3")
        return scalar, statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedLoss(Objective):
    """Cross-entropy on the trained tokens."""

    def __call__(self, rows: Batch, logprobs: Tensor, reference: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        return losses.supervised_loss(logprobs, rows.weights), {}
