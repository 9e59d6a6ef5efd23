"""The policy-gradient loss of a user's function."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sleuth.own.calls import Caller
from sleuth.own.functions import UserFunction, parameters_of, require_arguments
from sleuth.own.permission import prints_to_stderr

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
