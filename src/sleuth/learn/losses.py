"""Losses, estimators beside them, and advantages. All arrays of a loss are (B, T), and index t is about token t.

A loss is a plain sum over tokens, each times its weight. The weights of a whole step are fixed before it is cut into
micro-batches (`token_weights`), so the losses of the micro-batches add up to the loss of the step, and so do the
gradients, however the step was cut. A token that is not trained has weight 0.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from sleuth.own.calls import Caller, finite_number, plain, shown_value
from sleuth.own.functions import UserFunction, first_parameter, parameters_of, require_arguments
from sleuth.own.permission import prints_to_stderr

if TYPE_CHECKING:
    from sleuth.learn.batch import Batch
    from sleuth.learn.prefix_tree import Pack


Normaliser = Literal["token", "sequence", "constant"]
KLKind = Literal["k1", "k2", "k3"]

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped here before they are exponentiated: beyond it a gradient would be inf, and 0 * inf is NaN."""


TRIAL_SECONDS = 60.0
"""Timeout of a user's function."""
LEAST_REST = 1e-6
"""The least probability of all tokens that are not among a teacher's likeliest."""


def token_weights(
    mask: Tensor, kind: Normaliser, *, constant: int | None = None, episode_ids: Tensor | None = None
) -> Tensor:
    """The share of each trained token in the loss of a whole step: (B, T) fp32, exactly 0 where `mask` is false
    (fp64 if `mask` is).

    - `token`: every token counts the same, 1 / tokens of the step (DAPO, arXiv:2503.14476).
    - `sequence`: every row counts the same, its tokens share it (GRPO, arXiv:2402.03300).
    - `constant`: 1 / (rows * constant), so that a long row is not diluted (Dr. GRPO, arXiv:2503.20783).

    `mask` is bool, or has the relative weight of each token, 0 or more. Rows without a trained
    token are no rows: adding them changes nothing. Rows with the same number in `episode_ids`, (B,) int64, are one
    episode and count as one row. Raises ValueError if no token is trained.
    """
    counts = mask.to(torch.promote_types(mask.dtype, torch.float32))  # (B, T)
    of_row = counts.sum(dim=1, keepdim=True)  # (B, 1)
    by_episode = of_row if episode_ids is None else of_row.new_zeros(len(of_row), 1).index_add(0, episode_ids, of_row)
    rows = (by_episode > 0).sum()
    if rows == 0:
        raise ValueError("no token of this step is trained, so there is no loss")
    if kind == "token":
        return counts / of_row.sum()
    if kind == "sequence":
        of_episode = by_episode if episode_ids is None else by_episode[episode_ids]  # (B, 1)
        return counts / (torch.where(of_episode > 0, of_episode, 1.0) * rows)
    if constant is None:
        raise ValueError("the constant normaliser needs its constant")
    return counts / (rows * constant)


def clipped_policy_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, weights: Tensor, *, low: float, high: float
) -> Tensor:
    """-sum w min(r A, clip(r, 1 - low, 1 + high) A), with r = exp(logprobs - old_logprobs). PPO, arXiv:1707.06347.

    Separate bounds: clip-higher, arXiv:2503.14476. `advantages` is (B, T) or (B, 1). Departure from the paper: the
    log-ratio is clamped to +-20, far outside any clip, so that a ratio cannot overflow.
    """
    ratio = _ratio(logprobs, old_logprobs)  # (B, T)
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    return -(gain * weights).sum()


def cispo_policy_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, weights: Tensor, *, low: float, high: float
) -> Tensor:
    """-sum w sg(clip(r, 1 - low, 1 + high)) A log p, with r = exp(logprobs - old_logprobs). CISPO, arXiv:2506.13585.

    The bounds cap how much a token counts and never silence it; sg lets no gradient through. `low` = 1 leaves the lower
    side free, as in the paper. All (B, T); `advantages` may be (B, 1).
    """
    importance = _ratio(logprobs, old_logprobs).detach().clamp(1 - low, 1 + high)  # (B, T)
    return -(importance * advantages * logprobs * weights).sum()


def sequence_old_logprobs(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Old log-probabilities (B, T), without gradient, from which every token's ratio is that of its whole row.

    At each token exp(logprobs - result) has the value s = exp(mean over the row's `mask` of logprobs - old_logprobs)
    and the gradient s d log p of that token alone: GSPO-token, arXiv:2507.18071. Where the tokens of a row share
    advantage and weight, value and gradient are those of plain GSPO. `mask` is bool.
    """
    current = logprobs.detach()
    of_row = mask.sum(dim=1, keepdim=True).clamp(min=1)  # (B, 1)
    mean = torch.where(mask, current - old_logprobs, 0.0).sum(dim=1, keepdim=True) / of_row
    return current - mean


def clipped(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, low: float, high: float) -> Tensor:
    """(B, T) bool: where the clip of `clipped_policy_loss` holds the gradient at zero. Its weighted mean is the clip
    fraction."""
    ratio = _ratio(logprobs, old_logprobs)
    return ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & (ratio < 1 - low))


def out_of_bounds(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, low: float, high: float) -> Tensor:
    """(B, T) bool: where `cispo_policy_loss` weights a token by other than its ratio, whatever its advantage."""
    ratio = _ratio(logprobs, old_logprobs)
    return ((ratio > 1 + high) | (ratio < 1 - low)) & (advantages != 0)


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, kind: KLKind) -> Tensor:
    """Per token, (B, T): an estimate of KL(p || ref) from one token sampled from p. With d = ref_logprobs - logprobs:

    - `k1` = -d: unbiased, may be negative. As a loss it is only noise: the expectation of its gradient is zero.
    - `k2` = d^2 / 2: biased, but on tokens of the current policy its gradient is the gradient of the KL.
    - `k3` = exp(d) - 1 - d: unbiased and never negative; the one in GRPO, arXiv:2402.03300.

    Source: John Schulman, "Approximating KL divergence", joschu.net/blog/kl-approx.html.
    """
    difference = ref_logprobs - logprobs  # (B, T)
    if kind == "k1":
        return -difference
    if kind == "k2":
        return difference.square() / 2
    return difference.clamp(max=MAX_LOG_RATIO).expm1() - difference


def teacher_loss(logprobs: Tensor, teacher_logprobs: Tensor, weights: Tensor) -> Tensor:
    """sum w d^2 / 2 with d = logprobs - teacher_logprobs, all (B, T): on-policy distillation (arXiv:2306.13649) by the
    sampled tokens alone.

    On tokens of the current policy p the expectation of its gradient, d * grad log p, is the gradient of the reverse
    KL(p || teacher) of the token's distribution. Biased as to whole sequences: that a token leads to others on which
    teacher and policy differ is left out. Against the sum over the vocabulary it has the variance of one sample.
    """
    return (kl_penalty(logprobs, teacher_logprobs, "k2") * weights).sum()


def top_teacher_loss(top_logprobs: Tensor, teacher_logprobs: Tensor, weights: Tensor) -> Tensor:
    """sum w [sum_i p_i log(p_i / q_i) + p_rest log(p_rest / q_rest)], i over the k likeliest tokens to the teacher q,
    the rest of the vocabulary as one class: on-policy distillation (arXiv:2306.13649) without the variance of a sample.

    `top_logprobs` of the policy p and `teacher_logprobs` are (B, T, k), `weights` (B, T). Biased below: merging the
    rest leaves out how p and q differ within it, so this is at most the reverse KL(p || q) of the token, and equal to
    it for k = V - 1. Biased as to whole sequences as `teacher_loss` is. What is left for the rest is at least 1e-6,
    near fp32's rounding of 1 - sum_i; below, it has no gradient.
    """
    probabilities, taught = top_logprobs.exp(), teacher_logprobs.exp()  # (B, T, k)
    rest, taught_rest = (1 - part.sum(dim=-1).double() for part in (probabilities, taught))  # (B, T)
    rest, taught_rest = (part.clamp(min=LEAST_REST).to(top_logprobs.dtype) for part in (rest, taught_rest))
    divergence = (probabilities * (top_logprobs - teacher_logprobs)).sum(dim=-1) + rest * (rest / taught_rest).log()
    return (divergence * weights).sum()


def truncated_importance_weights(learner_logprobs: Tensor, sampler_logprobs: Tensor, cap: float) -> Tensor:
    """min(exp(learner - sampler), cap), (B, T), without gradient: the weight of a token that another engine sampled.

    Both are of the same weights before the update; they differ because two programs computed them. Source: Yao et
    al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (TIS).
    """
    return _ratio(learner_logprobs, sampler_logprobs).detach().clamp(max=cap)


def sampler_learner_kl(learner_logprobs: Tensor, sampler_logprobs: Tensor) -> Tensor:
    """Per token, (B, T): the k3 estimate of KL(sampler || learner) before the update, on tokens the sampler drew.
    0 means that engine and learner agree on the same weights."""
    return kl_penalty(sampler_logprobs, learner_logprobs, "k3")


def supervised_loss(logprobs: Tensor, weights: Tensor) -> Tensor:
    """Cross-entropy in nats: -sum w log p."""
    return -(logprobs * weights).sum()


def _ratio(logprobs: Tensor, other: Tensor) -> Tensor:
    return (logprobs - other).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def has_signal(values: Sequence[float | None]) -> bool:
    """Whether the non-missing values of a group differ; otherwise all its advantages are 0."""
    return len({value for value in values if value is not None}) > 1


STD_FLOOR = 1e-4
"""Smallest standard deviation that scores are divided by: smaller differences are noise."""


def group_advantages(values: Sequence[float | None], kind: str) -> list[float | None]:
    """The G advantages of one group. A missing value (None) is left out of mean and deviation and stays None.

    - `grpo`: (x - mean) / max(std, STD_FLOOR), arXiv:2402.03300. The paper does not say which std; ours is the
      population's, so that the advantages of a group have mean square 1 however many values are missing. (The
      sample's, which verl and TRL use, is larger by sqrt(n / (n - 1)).) The floor keeps score differences that are
      noise from being scaled up.
    - `centered`: x - mean, Dr. GRPO, arXiv:2503.20783.
    - `rloo`: x - mean of the others, which is n / (n - 1) times the centred value, arXiv:2402.14740.
    - `best`: 1 for the maximum (the first, if tied) if it is above 0; 0 for all others. With ratios of 1 a step is
      cross-entropy on the best samples: one round of expert iteration (arXiv:2203.14465).
    - `none`: 0 for all.

    A group without signal gets exactly 0.0. `group_advantages([1, 0, None, 0, 0], "centered")` is
    `[0.75, -0.25, None, -0.25, -0.25]`.
    """
    if kind == "none" or not has_signal(values):
        return [None if value is None else 0.0 for value in values]
    present = [value for value in values if value is not None]
    if kind == "best":
        best = values.index(max(present)) if max(present) > 0 else None
        return [None if value is None else float(at == best) for at, value in enumerate(values)]
    mean = fmean(present)
    scale = {
        "grpo": 1 / max(pstdev(present, mean), STD_FLOOR),
        "centered": 1.0,
        "rloo": len(present) / (len(present) - 1),
    }[kind]
    return [None if value is None else (value - mean) * scale for value in values]


class FunctionAdvantages:
    """The advantages that a user's function computes of the `scores` of each group, or, if its parameter is called
    `batch`, of a list of those of all groups. A score is None where it is missing, an advantage where the function
    leaves the episode out of the loss.

    The constructor raises UserCodeError for another function; a call if it raises, takes too long or returns anything
    but one finite number or None for each score.
    """

    def __init__(self, function: UserFunction) -> None:
        self.function = function
        example = f"def {function.short_name}(scores), of the scores of a group, or (batch), of a list of them"
        require_arguments(function, 1, {}, example)
        first = first_parameter(function)
        if first is None or first.name not in ("scores", "batch"):
            raise function.error(f"takes neither scores nor a batch; expected {example}")
        self.takes_batch = first.name == "batch"
        self.call = Caller(function, seconds=TRIAL_SECONDS)

    def __call__(self, batch: Sequence[Sequence[float | None]]) -> list[list[float | None]]:
        given = [list(scores) for scores in batch]
        if not self.takes_batch:
            return [self._checked(asyncio.run(self.call(list(scores))), scores) for scores in given]
        found = plain(asyncio.run(self.call([list(scores) for scores in given])))
        if not isinstance(found, Sequence) or isinstance(found, str) or len(found) != len(given):
            raise self.function.error(f"returned {shown_value(found)}; expected a list for each of {len(given)} groups")
        return [self._checked(of_group, scores) for of_group, scores in zip(found, given, strict=True)]

    def _checked(self, found: Any, scores: Sequence[float | None]) -> list[float | None]:
        found = plain(found)
        if not isinstance(found, Sequence) or isinstance(found, str) or len(found) != len(scores):
            raise self.function.error(f"returned {shown_value(found)}; expected {len(scores)} advantages, one a score")
        kept = [None if score is None else value for value, score in zip(found, scores, strict=True)]
        numbers = [None if value is None else finite_number(value) for value in kept]
        for value, number in zip(kept, numbers, strict=True):
            if value is not None and number is None:
                raise self.function.error(f"returned {shown_value(value)} as an advantage; expected a finite number")
        return numbers


def require_advantages(advantages: FunctionAdvantages, samples: int) -> None:
    """Calls a user's function on invented scores, twice. Raises UserCodeError if it fails, or draws random numbers."""
    scores = [(1.0, 0.0, 0.5, None)[at % 4] for at in range(samples)]
    batch = [scores, [1.0] * samples, scores[::-1]]
    if advantages(batch) != advantages(batch):
        raise advantages.function.error("returned other advantages for the same scores: a resumed run would differ")


POLICY_LOSSES = {"clip": (clipped_policy_loss, clipped), "cispo": (cispo_policy_loss, out_of_bounds)}
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
    `guidance` of each token times its KL to the teacher (`teacher_loss`, or `top_teacher_loss` where the
    batch has the teacher's likeliest tokens, which only a sum over tokens can follow).

    `old_logprobs` names whose log-probabilities the ratio starts from. The learner's own are taken in the same pass:
    the ratio is then 1, no bound ever acts, and every `policy_loss` and `ratio` has the same gradient, A d log p. With
    the sampler's, the ratio measures how far the learner is from what sampled the tokens, and the bounds act. `tis_cap`
    weights tokens by learner over sampler, truncated; it needs `old_logprobs="learner"`, since with the sampler's the
    ratio already contains the difference. `ratio` is each token's own, or one for a whole row (GSPO, arXiv:2507.18071).
    `policy_loss` is PPO's clip (arXiv:1707.06347) or CISPO's capped weight (arXiv:2506.13585).
    `temperature` is the sampling temperature. A `function` replaces the one that `policy_loss` names; it is called as
    those of `sleuth.learn.losses` are, and always sees whole rows. `step` is the number of steps made.
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
    step: int = 0

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
            old_logprobs = sequence_old_logprobs(learner, old_logprobs, rows.trained)
        weights = rows.weights
        if self.tis_cap is not None and sampler is not None:
            weights = weights * truncated_importance_weights(learner, sampler, self.tis_cap)
        policy_loss, bounded = POLICY_LOSSES[self.policy_loss]
        policy_loss = self.function or policy_loss
        bounds = {"low": self.clip_low, "high": self.clip_high}
        own = self.function if isinstance(self.function, FunctionLoss) else None
        more = {} if own is None else {"beta": self.beta, "step": self.step, "reference": reference}
        scalar = policy_loss(logprobs, old_logprobs, rows.advantages, weights, **bounds, **more)
        statistics = {"clip_fraction": bounded(learner, old_logprobs, rows.advantages, **bounds).float()}
        if sampler is not None:
            statistics["sampler_learner_kl"] = sampler_learner_kl(learner, sampler)
        if reference is not None:
            penalty = kl_penalty(logprobs, reference, self.kl)  # (R, T)
            if own is None or "reference" not in own.optional:  # else it has a KL term of its own
                scalar = scalar + self.beta * (penalty * rows.weights).sum()
            statistics["kl"] = penalty.detach()
        if rows.teacher_logprobs is not None and rows.guidance is not None:
            if rows.teacher_top is None:
                scalar = scalar + teacher_loss(logprobs, rows.teacher_logprobs, rows.weights * rows.guidance)
            elif (top := rows.teacher_top).of_policy is not None:  # else only the statistics are read
                scalar = scalar + top_teacher_loss(top.of_policy, top.logprobs, rows.weights * rows.guidance)
            statistics["teacher_kl"] = kl_penalty(learner, rows.teacher_logprobs, "k3")
        return scalar, statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedLoss(Objective):
    """Cross-entropy on the trained tokens."""

    def __call__(self, rows: Batch, logprobs: Tensor, reference: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        return supervised_loss(logprobs, rows.weights), {}


EXAMPLE = "def {name}(logprobs, old_logprobs, advantages, weights)"
OPTIONAL = ("low", "high", "beta", "step", "reference")
"""Parameters that a user's function gets if it has them: the bounds and the KL weight of the recipe, the number of
steps made, and the log-probabilities (R, T) of the reference model."""
TRIAL_ROWS, TRIAL_TOKENS = 3, 5


class FunctionLoss:
    """Calls a user's function as the losses of `sleuth.learn.losses` are called: `logprobs`, `old_logprobs`,
    `advantages` and `weights`, all (R, T), and those of the `OPTIONAL` ones that it takes.

    The constructor raises UserCodeError for a function that cannot be called like this with the `parameters`; a call
    does if the function raises, or returns no scalar with a gradient.
    """

    def __init__(self, function: UserFunction, parameters: Mapping[str, Any]) -> None:
        self.function = function
        self.parameters = dict(parameters)
        self.optional = [name for name in OPTIONAL if name in parameters_of(function) and name not in parameters]
        example = EXAMPLE.format(name=function.short_name)
        require_arguments(function, 4, {**self.parameters, **dict.fromkeys(self.optional)}, example)

    def __call__(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, weights: Tensor, **optional: Any
    ) -> Tensor:
        more = {name: optional[name] for name in self.optional}
        try:
            with prints_to_stderr():
                loss = self.function.call(logprobs, old_logprobs, advantages, weights, **more, **self.parameters)
        except Exception as error:
            if isinstance(error, torch.OutOfMemoryError | MemoryError):  # the step is repeated with fewer tokens
                raise
            raise self.function.raised(error) from error
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise self.function.error(f"returned {_shown(loss)}; expected a tensor with one number")
        if not loss.requires_grad:
            raise self.function.error("returned a number without a gradient; compute it from logprobs")
        return loss.reshape(())


def require_loss(loss: FunctionLoss, *, low: float, high: float, beta: Any = 0.0, corrects: bool = False) -> None:
    """Calls a user's loss on invented rows. Raises UserCodeError if it fails, is not finite, is not a sum over rows, so
    that it would depend on micro-batches, gives a gradient to tokens without weight, takes the reference where `beta`
    keeps none, or, where it `corrects` for older weights, is the same whatever probability they gave to a token."""
    if "reference" in loss.optional and not beta:
        raise loss.function.error("takes the reference, and with loss.beta = 0 there is none; set loss.beta")
    asyncio.run(
        Caller(loss.function, seconds=TRIAL_SECONDS).run(lambda: _try(loss, low=low, high=high, corrects=corrects))
    )


def _try(loss: FunctionLoss, *, low: float, high: float, corrects: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (TRIAL_ROWS, TRIAL_TOKENS)
    logprobs = (-torch.rand(shape, generator=generator)).requires_grad_()
    old_logprobs = logprobs.detach() + 0.2 * torch.randn(shape, generator=generator)
    advantages = torch.tensor([[1.0], [-0.5], [0.75]]).expand(shape)
    weights = torch.full(shape, 1 / (TRIAL_ROWS * (TRIAL_TOKENS - 1)))
    weights[:, 0] = 0.0

    def of_rows(rows: slice) -> Tensor:
        parts = (logprobs[rows], old_logprobs[rows], advantages[rows], weights[rows])
        return loss(*parts, low=low, high=high, beta=0.1, step=0, reference=old_logprobs[rows])

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
    if corrects:
        before, logprobs.grad = gradient.clone(), None
        old_logprobs += 0.1
        of_rows(slice(None)).backward()
        if logprobs.grad is not None and torch.equal(before, logprobs.grad):
            raise error(
                "has the same gradient whatever old_logprobs are, so that it cannot correct for the older weights that "
                'engine.max_policy_lag lets sample; use the ratio, or loss.old_logprobs = "learner" with loss.tis_cap'
            )


def _shown(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:60]
