"""Stop strings: which tokens can complete one, and where it ends in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from transformers import GenerationConfig, PreTrainedTokenizerFast

from sleuth.render import decode


class StopScanner:
    """Watches the text of one completion for the first of `stops` to be complete, also across pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stop for stop in stops if stop)
        self._longest_stop = max(map(len, self.stops), default=1) - 1
        self._tail = ""

    def feed(self, piece: str) -> tuple[str, bool]:
        """The part of `piece` that belongs to the completion, and whether a stop string ends it."""
        text = self._tail + piece
        end = end_of_stop(text, self.stops)
        if end is not None:
            return text[len(self._tail) : end], True
        self._tail = text[-self._longest_stop :] if self._longest_stop else ""
        return piece, False


def end_of_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the stop string that is complete first ends in `text`, if there is one."""
    return min((at + len(stop) for stop in stops if stop and (at := text.find(stop)) >= 0), default=None)


def end_tokens(config: GenerationConfig | None, tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    """The tokens that end a text, by a model's generation config and by the tokenizer."""
    configured = config.eos_token_id if config is not None else None
    ends = configured if isinstance(configured, list) else [configured]
    return frozenset(int(token) for token in [*ends, tokenizer.eos_token_id] if token is not None)


class StopTokens:
    """The tokens after which a completion may be over: those that end a text, and those whose own text holds the last
    character of a stop string. All others need no look at the text."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, vocabulary: int, ends: Collection[int]) -> None:
        self.tokenizer = tokenizer
        self.ends = np.zeros(vocabulary, dtype=bool)
        self.ends[[token for token in ends if token < vocabulary]] = True
        self._texts: list[str] = []
        self._by_characters: dict[frozenset[str], np.ndarray] = {frozenset(): self.ends}

    def of(self, stops: Sequence[str]) -> np.ndarray:
        """(V) bool. Everything, where a last character may be spread over tokens, or vanish from a token alone."""
        characters = frozenset(stop[-1] for stop in stops if stop)
        if characters not in self._by_characters:
            self._by_characters[characters] = self.ends | self._holding(characters)
        return self._by_characters[characters]

    def _holding(self, characters: Collection[str]) -> np.ndarray:
        if any(not character.isascii() or character.isspace() for character in characters):
            return np.ones_like(self.ends)
        self._texts = self._texts or [decode(self.tokenizer, [token]) for token in range(len(self.ends))]
        return np.array([any(character in text for character in characters) for text in self._texts], dtype=bool)
