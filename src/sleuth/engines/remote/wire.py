"""The protocol of a server's completion API; each server's is in a file of its own."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sleuth.types import Sampling

Body = dict[str, Any]

MALFORMED = (ValueError, TypeError, KeyError, AttributeError, IndexError)
"""The exceptions that reading a malformed answer may raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawCompletion:
    """A server's answer: n `tokens` and n `logprobs`, None where it returns none, and the text.

    `finish_reason` is in the server's terms; `weights` is the label of the weights, None if it is not in the answer.
    `RawCompletion(tokens=(5, 9), logprobs=(-0.1, -1.2), text="<search> Ada", finish_reason="length")`.
    """

    tokens: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    text: str
    finish_reason: str
    weights: str | None = None


class Aborted(ValueError):  # noqa: N818
    """The server aborted a request because a client asked it to."""


class Wire(Protocol):
    """One kind of server's completion API."""

    @property
    def path(self) -> str:
        """The endpoint, below the server's URL."""
        ...

    def body(self, prompt: Sequence[int], sampling: Sampling, *, limit: int, eos_ids: Collection[int]) -> Body:
        """A request to continue `prompt` by at most `limit` tokens, up to a stop string or one of `eos_ids`. It sets
        every parameter that a server would take from the generation config, for full support."""
        ...

    def read(self, answer: dict[str, Any], sampling: Sampling) -> RawCompletion:
        """The parsed answer. Log-probabilities other than the sampling policy's are dropped: those before temperature,
        at any temperature but 0 and 1. Raises one of `MALFORMED` for another shape, `Aborted` for an aborted request.
        """
        ...


def sampling_parameters(sampling: Sampling, eos_ids: Collection[int]) -> Body:
    """The parameters of a request that both kinds of server name alike, for the full support of the policy."""
    return {
        "temperature": sampling.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "stop": list(sampling.stops),
        "stop_token_ids": sorted(eos_ids),
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }


def checked_tokens(
    tokens: Sequence[Any], logprobs: Sequence[Any] | None
) -> tuple[tuple[int, ...], tuple[float, ...] | None]:
    """The validated token ids and log-probabilities. Raises ValueError if they are malformed."""
    if not all(type(token) is int and 0 <= token < 2**31 for token in tokens):
        raise ValueError("invalid token ids")
    if logprobs is None:
        return tuple(tokens), None
    if len(logprobs) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens with {len(logprobs)} log-probabilities")
    values = tuple(float(logprob) for logprob in logprobs)
    if not all(map(math.isfinite, values)):
        raise ValueError("log-probabilities that are not finite")
    return tuple(tokens), values


def are_sampling_logprobs(sampling: Sampling, *, scaled: bool) -> bool:
    """Whether a server's log-probabilities are those of the sampling policy; `scaled` means after temperature."""
    return scaled or sampling.temperature in (0.0, 1.0)
