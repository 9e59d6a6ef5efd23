"""Initial weights with which a small model looks up what followed a word before, from its first step on.

A transformer learns to read in two parts that are worth nothing alone: one layer must tell each token what stands
before it, a later one must look for a token that stands behind what stands here (induction heads, arXiv:2209.11895).
A model of a few layers finds both by luck, after thousands of steps on a plateau. Here both are drawn at random as
one: an instance of mimetic initialisation (arXiv:2305.09828), for models that are made from nothing. Nothing is
frozen: training goes on from there as from any other weights.

- Layer 0, heads 0 and 1: attention to the token one and two places back, by rotary phase alone; what they carry is
  written beside the token's own embedding.
- Layer 1, head 0: attention to what stands behind the latest tag, such as the id of the snippet that a word is in; that
  is carried to all that follows. Head 1: to the latest bar, which ends a title, and the two words before it are
  carried likewise.
- Layer 2, head 0: the two words before this token are looked for as a title, and what stands under it is copied. Head
  1: what stands here, together with the token before it, is looked for as what stood before, so that a name of two
  words is told from another that shares one of them; what followed there is copied. Head 2 looks for what stood before
  this token, and copies what head 0 of layer 1 carried to where it is found.
- The outputs of all other heads, and of all MLPs, begin near zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

BACK, FIELD, MATCH = 0, 1, 2
"""The layers of the three parts."""
ALWAYS, TAG, TAGGED, BAR = 0, 1, 2, 3
KEPT = [ALWAYS, TAG, TAGGED, BAR]
"""Coordinates of the residual stream that are kept for: any token, a tag, a token behind a tag, a bar. Nothing else is
written there at first: a trace of it would be taken for a mark."""
QUIET = 0.01
"""By which everything else begins smaller."""
PRESENT = 0.3
"""How large such a coordinate of an embedding is; a tag's is twice as large."""
FAST, SLOW = 8, 6
"""So many of the fastest rotary pairs tell places apart; from this one on, they turn too slowly to disturb content."""
NEAR = slice(4, 11)
"""Pairs that turn by half a circle in some ten to some hundred places: of several tags, the latest is nearest."""
LOUD = 4.0
"""Of the keys that bear a mark, beside those of all other tokens."""
SHARP, CAREFUL = 3.2, 1.6
"""Gains of queries and keys in the first layer, and in the two others."""
CARRIED, COPIED = 1.5, 6.0
"""How large what is carried and what is copied are, as multiples of `std`."""


def begin_with_induction(
    model: PreTrainedModel, std: float, seed: int, tags: Sequence[int], bars: Sequence[int]
) -> None:
    """Rewrite, in place, the weights of a fresh model in the manner of Qwen3 (tied embeddings, normalised queries and
    keys, at least three layers and three heads, as many for keys as for queries); a function of the shape, the seed and
    the tokens that are `tags` and `bars`.

    `std` is that of its embeddings; behind a tag stands what names a field of text, before a bar the title of one.
    """
    heads = _Heads(model, torch.Generator().manual_seed(seed))
    layers = cast(Any, model).model.layers
    back, field, match = (layers[at].self_attn for at in (BACK, FIELD, MATCH))
    embeddings = cast(nn.Embedding, model.get_input_embeddings()).weight
    with torch.no_grad():
        embeddings[:, ALWAYS] = PRESENT
        embeddings[:, [TAG, TAGGED, BAR]] = 0
        embeddings[list(tags), TAG] = 2 * PRESENT
        embeddings[list(bars), BAR] = 2 * PRESENT
        for layer in layers:
            layer.self_attn.o_proj.weight.mul_(QUIET)
            layer.mlp.down_proj.weight.mul_(QUIET)
            layer.self_attn.o_proj.weight[KEPT] = 0
            layer.mlp.down_proj.weight[KEPT] = 0
        read, one_back, two_back, carried, title = (heads.frame() for _ in range(5))
        named = torch.cat([one_back[: heads.half], two_back[: heads.half]])
        for head, written in enumerate((one_back, two_back)):
            heads.look_back(back, head, places=head + 1)
            heads.carry(back, head, read, written * CARRIED * std)
        heads.say_where_tags_are(back, CARRIED * std)
        heads.look_for(field, 0, TAGGED)
        heads.carry(field, 0, read, carried * CARRIED * std)
        heads.look_for(field, 1, BAR)
        heads.carry(field, 1, named, title * CARRIED * std)
        heads.match(match, 0, [(named, title)])
        heads.carry(match, 0, read, read * COPIED * std / 2)
        heads.match(match, 1, [(read, one_back), (one_back, two_back)])
        heads.match(match, 2, [(one_back, two_back)])
        found = heads.frame()
        heads.carry(match, 1, found, found * COPIED * std)
        heads.carry(match, 2, carried, read * COPIED * std / 2)
        for layer, gain in ((back, SHARP), (field, CAREFUL), (match, CAREFUL)):
            layer.q_norm.weight.fill_(gain)
            layer.k_norm.weight.fill_(gain)


class _Heads:
    """The rows of a layer's projections that belong to one head, written by what the head shall do."""

    def __init__(self, model: PreTrainedModel, drawn: torch.Generator) -> None:
        config = cast(Any, model.config)
        self.size: int = config.head_dim
        self.width: int = config.hidden_size
        self.half = self.size // 2
        self.drawn = drawn
        theta = float(config.rope_parameters["rope_theta"])
        self.turn = theta ** (-torch.arange(self.half, dtype=torch.float64) / self.half)  # radians a place

    def frame(self) -> Tensor:
        """Directions of the residual stream, (head size, width): orthonormal, but for the coordinates that are kept."""
        square = torch.linalg.qr(torch.randn(self.width, self.width, generator=self.drawn))[0]
        chosen = square[: self.size].clone()
        chosen[:, KEPT] = 0
        return chosen

    def look_back(self, attention: Any, head: int, places: int) -> None:
        """Attend `places` back, whatever stands there: the key is turned as though it stood so much further on."""
        query, key = torch.zeros(self.size), torch.zeros(self.size)
        phase = places * self.turn[:FAST]
        query[:FAST] = 1
        key[:FAST], key[self.half : self.half + FAST] = phase.cos().float(), phase.sin().float()
        rows = self._rows(head)
        for projection, constant in ((attention.q_proj, query), (attention.k_proj, key)):
            projection.weight[rows] *= QUIET
            projection.weight[rows, ALWAYS] = constant

    def say_where_tags_are(self, attention: Any, size: float) -> None:
        """Head 0, which looks one back, gives its last place to one thing: whether a tag stands there."""
        last = self.size - 1
        attention.v_proj.weight[last] = 0
        attention.v_proj.weight[last, TAG] = 1
        attention.o_proj.weight[:, last] = 0
        attention.o_proj.weight[TAGGED, last] = size

    def look_for(self, attention: Any, head: int, mark: int) -> None:
        """Attend to the nearest token that bears a mark: the keys of all others point where no query does."""
        near, elsewhere = torch.zeros(self.size), torch.zeros(self.size)
        near[NEAR] = 1
        elsewhere[self.half - 1] = 1
        rows = self._rows(head)
        for projection in (attention.q_proj, attention.k_proj):
            projection.weight[rows] *= QUIET
        attention.q_proj.weight[rows, ALWAYS] = near
        attention.k_proj.weight[rows, ALWAYS] = elsewhere
        attention.k_proj.weight[rows, mark] = near * LOUD

    def match(self, attention: Any, head: int, pairs: list[tuple[Tensor, Tensor]]) -> None:
        """Attend to where the second frame of every pair holds what the first one holds here."""
        slow = torch.cat([torch.arange(SLOW, self.half), torch.arange(self.half + SLOW, self.size)])
        query, key = torch.zeros(self.size, self.width), torch.zeros(self.size, self.width)
        for here, there in pairs:
            mixed = torch.randn(len(slow), self.size, generator=self.drawn) / self.size**0.5
            query[slow] += mixed @ here
            key[slow] += mixed @ there
        attention.q_proj.weight[self._rows(head)] = query
        attention.k_proj.weight[self._rows(head)] = key

    def carry(self, attention: Any, head: int, read: Tensor, written: Tensor) -> None:
        """Read along one frame where the head attends, and write along another."""
        attention.v_proj.weight[self._rows(head)] = read
        attention.o_proj.weight[:, self._rows(head)] = written.T

    def _rows(self, head: int) -> slice:
        return slice(head * self.size, (head + 1) * self.size)
