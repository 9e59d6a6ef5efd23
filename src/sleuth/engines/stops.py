"""Stop strings and end-of-text tokens: finding them in streamed text, and which tokens can complete one."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from transformers import PreTrainedTokenizerFast

from sleuth.render import decode


class StopScanner:
    """Finds the first complete stop string in the streamed text of one completion, also across pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stop for stop in stops if stop)
        self._longest_stop = max(map(len, self.stops), default=1) - 1
        self._tail = ""

    def feed(self, piece: str) -> tuple[str, bool]:
        """The part of `piece` that belongs to the completion, and whether a stop string ends it."""
        text = self._tail + piece
        end = stop_end(text, self.stops)
        if end is not None:
            return text[len(self._tail) : end], True
        self._tail = text[-self._longest_stop :] if self._longest_stop else ""
        return piece, False


def stop_end(text: str, stops: Sequence[str]) -> int | None:
    """The end position in `text` of the stop string that completes first, or None."""
    return min((at + len(stop) for stop in stops if stop and (at := text.find(stop)) >= 0), default=None)


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
