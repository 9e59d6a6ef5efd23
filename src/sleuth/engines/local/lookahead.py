"""The step that a card still computes while the host prepares the next one.

The next step reads the ids of the last one where they were sampled, so that the card never waits for the host. The host
reads them while the next step runs. A request that turns out to have ended is in one step too many: what it sampled
there is dropped. A draw depends on the request's key and the token's position alone, so nobody else notices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sleuth.engines.request import Request
from sleuth.kernels.transfers import Arrival, sent


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTokens:
    """Tokens that are being sampled: for each of `slots` (B), in which `requests` (B) run, that at `positions` (B)."""

    slots: np.ndarray
    positions: np.ndarray
    requests: Sequence[Request]
    arrival: Arrival

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """The tokens (B) and their log-probabilities (B); waits until they are there."""
        tokens, logprobs = self.arrival.read()
        return tokens.astype(np.int64), logprobs


class SampledTokens:
    """The token that was sampled last in each slot, on the device, and the `pending` ones that the host has not read.

    `by_slot` (slots + 1) has a place more, for rows that only fill up a batch.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self.by_slot = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self.pending: PendingTokens | None = None

    def store(self, slots: np.ndarray, sampled: Tensor) -> None:
        """Stores the tokens of `sampled` (2, B), which has log-probabilities too, for the next step."""
        self.by_slot.index_copy_(0, sent(slots, sampled.device), sampled[0].long())

    def wait_for(
        self, sampled: Tensor, slots: np.ndarray, positions: np.ndarray, requests: Sequence[Request]
    ) -> PendingTokens | None:
        """Makes `sampled` (2, B) the pending tokens. Returns the ones before."""
        before, arrival = self.pending, Arrival(sampled)
        self.pending = PendingTokens(slots=slots, positions=positions, requests=requests, arrival=arrival)
        return before

    def take(self) -> PendingTokens | None:
        """The pending tokens, which are so no longer."""
        pending, self.pending = self.pending, None
        return pending


def with_sampled(tokens: Tensor, slots: Tensor, by_slot: Tensor) -> Tensor:
    """`tokens` (B) of `slots` (B), those that the host does not know (negative) from `by_slot`."""
    return torch.where(tokens < 0, by_slot.index_select(0, slots), tokens)
