"""What each slot needs to write its next token, and what it thought of those it wrote."""

from __future__ import annotations

import numpy as np

from sleuth.engines.sampling import uniforms
from sleuth.types import Sampling


class DecodeState:
    """By slot and position: index t speaks of token t.

    `draws` are the random numbers (slots, context), `logprobs` those of the tokens written. A look at the text is due
    where a slot writes a token that it has in `watched` (slots, V), or reaches `full` (slots) tokens.
    """

    def __init__(self, *, slots: int, context: int, vocabulary: int) -> None:
        self.temperatures = np.ones(slots)
        self.draws = np.zeros((slots, context))
        self.logprobs = np.zeros((slots, context), dtype=np.float32)  # as they are stored
        self.full = np.zeros(slots, dtype=np.int64)
        self.watched = np.zeros((slots, vocabulary), dtype=bool)

    def begin(self, slot: int, sampling: Sampling, *, length: int, limit: int, watched: np.ndarray | bool) -> None:
        """`slot` will write at most `limit` tokens after the first `length`."""
        self.temperatures[slot] = sampling.temperature
        self.draws[slot, length : length + limit] = uniforms(sampling.key, limit)
        self.full[slot] = length + limit
        self.watched[slot] = watched

    def due(self, slots: np.ndarray, lengths: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Which of `slots` (B) need a look at their text, now that they have `lengths` (B) and wrote `tokens` (B)."""
        return self.watched[slots, tokens] | (lengths >= self.full[slots])
