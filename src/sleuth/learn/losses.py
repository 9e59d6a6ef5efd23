"""Losses, estimators beside them, and advantages. All arrays of a loss are (B, T), and index t is about token t.

A loss is a plain sum over tokens, each times its weight. The weights of a whole step are fixed before it is cut into
micro-batches (`token_weights`), so the losses of the micro-batches add up to the loss of the step, and so do the
gradients, however the step was cut. A token that is not trained has weight 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Literal

import torch
from torch import Tensor

Normaliser = Literal["token", "sequence", "constant"]
KLKind = Literal["k1", "k2", "k3"]

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped here before they are exponentiated: beyond it a gradient would be inf, and 0 * inf is NaN."""


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


AdvantageKind = Literal["grpo", "centered", "rloo", "best", "none"]


def has_signal(values: Sequence[float | None]) -> bool:
    """Whether the non-missing values of a group differ; otherwise all its advantages are 0."""
    return len({value for value in values if value is not None}) > 1


STD_FLOOR = 1e-4
"""Smallest standard deviation that scores are divided by: smaller differences are noise."""


def group_advantages(values: Sequence[float | None], kind: AdvantageKind) -> list[float | None]:
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
