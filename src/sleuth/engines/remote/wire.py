"""What an engine says to a server, and hears from it: one seam, and a file for each way of speaking."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sleuth.types import Sampling

MALFORMED = (ValueError, TypeError, KeyError, AttributeError, IndexError)
"""What reading an answer of another shape raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawCompletion:
    """What a server says it wrote: n `tokens` with their n `logprobs`, each None where it does not tell, and the text.

    `ended` is its own word for why it stopped, `weights` its name for the weights that wrote, where it has one.
    `RawCompletion(tokens=(5, 9), logprobs=(-0.1, -1.2), text="<search> Ada", ended="length")`.
    """

    tokens: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    text: str
    ended: str
    weights: str | None = None


class Aborted(ValueError):  # noqa: N818
    """The server ended a request because somebody asked it to."""


class Wire(Protocol):
    """One server's way of speaking."""

    @property
    def path(self) -> str:
        """Where requests go, below the server's URL."""
        ...

    def body(
        self, prompt: Sequence[int], sampling: Sampling, *, limit: int, eos_ids: Collection[int]
    ) -> dict[str, Any]:
        """A request to continue `prompt` by at most `limit` tokens, through a stop string or one of `eos_ids`.
        Whatever a server would take from the model's generation config is named: the support is the whole
        vocabulary."""
        ...

    def read(self, answer: dict[str, Any], sampling: Sampling) -> RawCompletion:
        """What came back. Log-probabilities that are not those of the draw are left out: of a server that tells those
        before temperature, at any temperature but 0 and 1. Raises one of `MALFORMED` where it is of another shape, and
        `Aborted` where the server was told to end it."""
        ...


def checked_tokens(
    tokens: Sequence[Any], logprobs: Sequence[Any] | None
) -> tuple[tuple[int, ...], tuple[float, ...] | None]:
    """Token ids and their log-probabilities as they should be. Raises ValueError where they are not."""
    if not all(type(token) is int and 0 <= token < 2**31 for token in tokens):
        raise ValueError("token ids that are none")
    if logprobs is None:
        return tuple(tokens), None
    if len(logprobs) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens with {len(logprobs)} log-probabilities")
    told = tuple(float(logprob) for logprob in logprobs)
    if not all(map(math.isfinite, told)):
        raise ValueError("log-probabilities that are no numbers")
    return tuple(tokens), told


def are_sampling_logprobs(sampling: Sampling, *, scaled: bool) -> bool:
    """Whether what a server tells are the log-probabilities of the policy that sampled; `scaled` are those after
    temperature."""
    return scaled or sampling.temperature in (0.0, 1.0)
