"""The memory of a pass of the learner on a card, from shapes alone, and other sizes that the plan of a recipe needs
without torch."""

from __future__ import annotations

from dataclasses import dataclass

PAGE = 64
"""Tokens of a page of the KV cache. Its keys fit into a processor's innermost cache with their values, and are a block
of a card's kernel."""
FP32 = 4
CARD_CHUNK_ROWS = 2**11
"""Rows of logits that are computed at once on a card, which is idle while it reads the weights for fewer."""
PIECE_LOGITS = 2**25
"""Logits that are in fp32 at the same time (128 MB); the rest of a 16-bit chunk stays in 16 bits."""
SPARE = 0.1
"""Share of the free memory that is left for what is not counted: workspaces, and gaps between tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPass:
    """A forward and a backward pass of a decoder whose functions are fused (`fused`), with elements of `size`
    bytes. `queries` and `keys` are elements of a token in one layer; `trains_words`: the head gets a gradient."""

    layers: int
    width: int
    heads: int
    queries: int
    keys: int
    mlp: int
    words: int
    qk_norm: bool
    size: int
    trains_words: bool = True

    @property
    def layer(self) -> int:
        """Bytes of a token that one layer keeps for its backward pass: 45,120 in bf16 for the shape of Qwen3-0.6B."""
        norms = 2 * 2 * self.width  # what each reads, and what the products after it read
        attention = 2 * self.queries + 2 * self.keys  # turned queries and keys, values, the output
        before_norms = (self.queries + self.keys) * self.qk_norm
        return self.size * (norms + attention + before_norms + 3 * self.mlp) + FP32 * self.heads

    @property
    def under_way(self) -> int:
        """Bytes of a token's gradients in one layer's backward pass."""
        return self.size * (2 * self.mlp + 2 * self.width)

    def logits(self, rows: int) -> int:
        """Bytes of the logits of `rows`, a chunk at a time, and of what is computed from them: in fp32, shifted and
        exponentiated, of a 16-bit chunk a piece at a time."""
        logits = min(rows, CARD_CHUNK_ROWS) * self.words
        if self.size == FP32:
            return 3 * FP32 * logits
        return self.size * logits + 3 * FP32 * min(logits, PIECE_LOGITS)

    def kept_layers(self, tokens: int, free: int) -> int:
        """How many layers can keep the activations of `tokens` in `free` bytes; the others compute them again. Counts
        all that a pass holds at once, also what is not there at the same time."""
        head = (self.size + FP32) * self.words * self.width * self.trains_words
        inputs = (self.layers * self.size + 3 * self.size + 2 * FP32) * self.width  # and last hidden states
        needed = tokens * (inputs + self.under_way) + self.logits(tokens) + head
        each = tokens * (self.layer - self.size * self.width)
        return max(0, min(self.layers, int((1 - SPARE) * free - needed) // each))
