"""What one optimiser step minimises: a policy gradient, cross-entropy, or an objective of a family."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from sleuth.learn import losses
from sleuth.learn.batch import Batch
from sleuth.learn.losses import KLKind
from sleuth.learn.prefix_tree import Pack
from sleuth.own.calls import Caller
from sleuth.own.functions import UserFunction, parameters_of, require_arguments
from sleuth.own.permission import prints_to_stderr

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


EXAMPLE = "def {name}(logprobs, old_logprobs, advantages, weights)"
BOUNDS = ("low", "high")
"""Parameters that get the bounds of the recipe, if the function has them."""
TRIAL_SECONDS = 60.0
TRIAL_ROWS, TRIAL_TOKENS = 3, 5


class FunctionLoss:
    """Calls a user's function as the losses of `sleuth.learn.losses` are called: `logprobs`, `old_logprobs`,
    `advantages` and `weights`, all (R, T), and `low` and `high` if it takes them.

    The constructor raises UserCodeError for a function that cannot be called like this with the `parameters`; a call
    does if the function raises, or returns no scalar with a gradient.
    """

    def __init__(self, function: UserFunction, parameters: Mapping[str, Any]) -> None:
        self.function = function
        self.parameters = dict(parameters)
        self.bounds = [name for name in BOUNDS if name in parameters_of(function) and name not in parameters]
        example = EXAMPLE.format(name=function.short_name)
        require_arguments(function, 4, {**self.parameters, **dict.fromkeys(self.bounds)}, example)

    def __call__(
        self,
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        weights: Tensor,
        *,
        low: float,
        high: float,
    ) -> Tensor:
        bounds = {name: value for name, value in (("low", low), ("high", high)) if name in self.bounds}
        try:
            with prints_to_stderr():
                loss = self.function.call(logprobs, old_logprobs, advantages, weights, **bounds, **self.parameters)
        except Exception as error:
            if isinstance(error, torch.OutOfMemoryError | MemoryError):  # the step is repeated with fewer tokens
                raise
            raise self.function.raised(error) from error
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise self.function.error(f"returned {_shown(loss)}; expected a tensor with one number")
        if not loss.requires_grad:
            raise self.function.error("returned a number without a gradient; compute it from logprobs")
        return loss.reshape(())


def require_loss(loss: FunctionLoss, *, low: float, high: float) -> None:
    """Calls a user's loss on invented rows. Raises UserCodeError if it fails, is not finite, is not a sum over rows, so
    that it would depend on micro-batches, or gives a gradient to tokens without weight."""
    asyncio.run(Caller(loss.function, seconds=TRIAL_SECONDS).run(lambda: _try(loss, low=low, high=high)))


def _try(loss: FunctionLoss, *, low: float, high: float) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (TRIAL_ROWS, TRIAL_TOKENS)
    logprobs = (-torch.rand(shape, generator=generator)).requires_grad_()
    old_logprobs = logprobs.detach() + 0.2 * torch.randn(shape, generator=generator)
    advantages = torch.tensor([[1.0], [-0.5], [0.75]]).expand(shape)
    weights = torch.full(shape, 1 / (TRIAL_ROWS * (TRIAL_TOKENS - 1)))
    weights[:, 0] = 0.0

    def of_rows(rows: slice) -> Tensor:
        parts = (logprobs[rows], old_logprobs[rows], advantages[rows], weights[rows])
        return loss(*parts, low=low, high=high)

    whole = of_rows(slice(None))
    whole.backward()
    gradient = logprobs.grad
    error = loss.function.error
    if gradient is None or not torch.isfinite(whole) or not torch.isfinite(gradient).all():
        raise error(f"returned {whole.item()} with a gradient that is not finite; check for divisions by 0")
    if gradient[:, 0].any():
        raise error("gives a gradient to tokens with weight 0, which the policy did not write; multiply by weights")
    parts = sum(of_rows(slice(row, row + 1)).item() for row in range(TRIAL_ROWS))
    if abs(whole.item() - parts) > 1e-4 * max(1.0, abs(parts)):
        raise error(
            f"returned {whole.item():.4g} for rows that give {parts:.4g} one by one, so that it would depend on "
            "micro-batches; return the sum over tokens of values times weights, not a mean"
        )


def _shown(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:60]
