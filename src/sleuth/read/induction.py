"""Initial weights with induction heads: a small model can copy what followed an earlier occurrence from its first step.

An induction head needs two layers that are useless alone: one that writes each token's predecessor beside it, a later
one that attends to tokens whose predecessor is the current token (arXiv:2209.11895). A small model finds both only
after thousands of steps on a plateau. Here they are initialised together with random directions, a case of mimetic
initialisation (arXiv:2305.09828), for models trained from scratch. Nothing is frozen.

- Layer 0, heads 0 and 1 attend one and two tokens back, by rotary phase alone, and write what they read beside the
  token's own embedding.
- Layer 1, head 0 attends to the token after the latest tag, such as the id of the snippet that a word is in, and writes
  it to all later tokens. Head 1 attends to the latest bar, which ends a title, and writes the two words before it.
- Layer 2, head 0 matches the two words before this token with a title and copies what is under it. Head 1 matches this
  token and the one before it with an earlier pair, so that names of two words that share one are distinct, and copies
  what followed. Head 2 matches the token before this one and copies what layer 1, head 0 wrote there.
- The outputs of all other heads, and of all MLPs, begin near zero.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.read.initial_weights import ALWAYS, Heads
from sleuth.recipe.training import InitRecipe

BACK, FIELD, MATCH = 0, 1, 2
"""The layers of the three parts."""
TAG, TAGGED, BAR = 1, 2, 3
RESERVED = [ALWAYS, TAG, TAGGED, BAR]
"""Reserved coordinates of the residual stream: any token, a tag, a token after a tag, a bar. Nothing else writes there
at first, since it would be taken for a mark."""
SMALL = 0.01
"""Factor on all other initial weights."""
MARK = 0.3
"""Value of `ALWAYS` in an embedding; `TAG` and `BAR` have twice that."""
FAST, SLOW = 8, 6
"""The first `FAST` rotary pairs encode positions; pairs from `SLOW` on turn too slowly to disturb content."""
NEAR = slice(4, 11)
"""Rotary pairs that turn by half a circle in about ten to some hundred tokens, so the latest of several tags wins."""
MARKED_KEY = 4.0
"""Scale of the keys of marked tokens, relative to all others."""
BACK_GAIN, CONTENT_GAIN = 3.2, 1.6
"""Gains of queries and keys in the first layer, and in the other two."""
CARRIED, COPIED = 1.5, 6.0
"""Scales of what layers 0 and 1 write and of what layer 2 copies, as multiples of `std`."""


def begin_with_induction(
    model: PreTrainedModel, init: InitRecipe, tokenizer: PreTrainedTokenizerFast, seed: int
) -> None:
    """Overwrites weights of a newly initialised model like Qwen3's (tied embeddings, normalised queries and keys, at
    least three layers and three heads, as many for keys as for queries). Deterministic for shape, seed and tokens.

    After a tag, which is an added token, comes the name of a field of text, before a bar the title of one.
    """
    std, tags = init.std, [*tokenizer.get_added_vocab().values()]
    bars = tokenizer(" |", add_special_tokens=False)["input_ids"]
    heads = _InductionHeads(model, torch.Generator().manual_seed(seed), RESERVED)
    layers = cast(Any, model).model.layers
    back, field, match = (layers[at].self_attn for at in (BACK, FIELD, MATCH))
    embeddings = cast(nn.Embedding, model.get_input_embeddings()).weight
    with torch.no_grad():
        embeddings[:, ALWAYS] = MARK
        embeddings[:, [TAG, TAGGED, BAR]] = 0
        embeddings[tags, TAG] = 2 * MARK
        embeddings[bars, BAR] = 2 * MARK
        for layer in layers:
            layer.self_attn.o_proj.weight.mul_(SMALL)
            layer.mlp.down_proj.weight.mul_(SMALL)
            layer.self_attn.o_proj.weight[RESERVED] = 0
            layer.mlp.down_proj.weight[RESERVED] = 0
        read, one_back, two_back, carried, title = (heads.frame() for _ in range(5))
        named = torch.cat([one_back[: heads.half], two_back[: heads.half]])
        for head, written in enumerate((one_back, two_back)):
            heads.look_back(back, head, head + 1, pairs=FAST, faint=SMALL, scale=1.0)
            heads.carry(back, head, read, written * CARRIED * std)
        heads.mark_tagged_tokens(back, CARRIED * std)
        heads.look_for(field, 0, TAGGED)
        heads.carry(field, 0, read, carried * CARRIED * std)
        heads.look_for(field, 1, BAR)
        heads.carry(field, 1, named, title * CARRIED * std)
        heads.match(match, 0, [(named, title)])
        heads.carry(match, 0, read, read * COPIED * std / 2)
        heads.match(match, 1, [(read, one_back), (one_back, two_back)])
        heads.match(match, 2, [(one_back, two_back)])
        copied = heads.frame()
        heads.carry(match, 1, copied, copied * COPIED * std)
        heads.carry(match, 2, carried, read * COPIED * std / 2)
        for layer, gain in ((back, BACK_GAIN), (field, CONTENT_GAIN), (match, CONTENT_GAIN)):
            layer.q_norm.weight.fill_(gain)
            layer.k_norm.weight.fill_(gain)


class _InductionHeads(Heads):
    def mark_tagged_tokens(self, attention: Any, size: float) -> None:
        """Head 0, which looks one back, uses its last dimension for whether the token there is a tag."""
        last = self.size - 1
        attention.v_proj.weight[last] = 0
        attention.v_proj.weight[last, TAG] = 1
        attention.o_proj.weight[:, last] = 0
        attention.o_proj.weight[TAGGED, last] = size

    def look_for(self, attention: Any, head: int, mark: int) -> None:
        """Attend to the nearest token with a mark: keys of all others are orthogonal to the query."""
        near, elsewhere = torch.zeros(self.size), torch.zeros(self.size)
        near[NEAR] = 1
        elsewhere[self.half - 1] = 1
        rows = self.rows(head)
        for projection in (attention.q_proj, attention.k_proj):
            projection.weight[rows] *= SMALL
        attention.q_proj.weight[rows, ALWAYS] = near
        attention.k_proj.weight[rows, ALWAYS] = elsewhere
        attention.k_proj.weight[rows, mark] = near * MARKED_KEY

    def match(self, attention: Any, head: int, pairs: list[tuple[Tensor, Tensor]]) -> None:
        """Attend to tokens whose content along the second frame of each pair is this token's along the first."""
        slow = torch.cat([torch.arange(SLOW, self.half), torch.arange(self.half + SLOW, self.size)])
        query, key = torch.zeros(self.size, self.width), torch.zeros(self.size, self.width)
        for here, there in pairs:
            mixed = torch.randn(len(slow), self.size, generator=self.generator) / self.size**0.5
            query[slow] += mixed @ here
            key[slow] += mixed @ there
        attention.q_proj.weight[self.rows(head)] = query
        attention.k_proj.weight[self.rows(head)] = key
