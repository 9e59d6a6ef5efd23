"""A loss of your own: tokens far from the sampling policy are faded out instead of clipped. `faded.toml` uses it."""

from torch import Tensor


def faded(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, weights: Tensor, *, width: float = 0.5) -> Tensor:
    """-sum w A r exp(-(log r / width)^2), where r = exp(logprobs - old_logprobs); all (R, T)."""
    log_ratio = (logprobs - old_logprobs).clamp(-20, 20)
    fade = (-(log_ratio.detach() / width).square()).exp()
    return -(weights * advantages * log_ratio.exp() * fade).sum()
