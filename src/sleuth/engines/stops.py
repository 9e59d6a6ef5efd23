"""Which tokens can end a completion: those of the end of a text, and those that can complete a stop string."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from transformers import PreTrainedTokenizerFast

from sleuth.render import decode


class StopTokens:
    """The tokens that may end a completion: end-of-text tokens, and tokens whose text contains the last character of a
    stop string. After any other token the text need not be checked."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, vocabulary: int, eos_ids: Collection[int]) -> None:
        self.tokenizer = tokenizer
        self.is_eos = np.zeros(vocabulary, dtype=bool)
        self.is_eos[[token for token in eos_ids if token < vocabulary]] = True
        self._texts: list[str] = []
        self._masks: dict[frozenset[str], np.ndarray] = {frozenset(): self.is_eos}

    def mask(self, stops: Sequence[str]) -> np.ndarray:
        """(V) bool. All True if a last character may span tokens, or be lost when a token is decoded alone."""
        characters = frozenset(stop[-1] for stop in stops if stop)
        if characters not in self._masks:
            self._masks[characters] = self.is_eos | self._containing(characters)
        return self._masks[characters]

    def _containing(self, characters: Collection[str]) -> np.ndarray:
        if any(not character.isascii() or character.isspace() for character in characters):
            return np.ones_like(self.is_eos)
        self._texts = self._texts or [decode(self.tokenizer, [token]) for token in range(len(self.is_eos))]
        return np.array([any(character in text for character in characters) for text in self._texts], dtype=bool)
