"""Initial weights for reading: a small model compares the words of a question with those of a passage, and copies what
it attends to, from its first step.

A decoder that sees question, passage and question again can answer from the passage by three parts that are useless
alone: heads that attend to other occurrences of a word, heads that attend to the token before, and a head that copies.
Here they are initialised together with random directions, a case of mimetic initialisation (arXiv:2305.09828), for
models trained from scratch. Nothing is frozen.

- Embeddings are one third random, one third by spelling (character n-grams, hashed as in arXiv:1607.04606), so that
  `lived` matches `living`, and one third by company (positive pointwise mutual information with the neighbours by SVD,
  as in Levy and Goldberg 2014), so that years are near years. Frequent words are shorter vectors.
- Layer 0, head 0, layer 1, heads 0 and 1, and layer 2, head 0 attend to tokens of the same content: queries and keys
  are the same projection onto rotary pairs that hardly turn.
- Layer 0: the last head attends one token back, the one before it two, by rotary phase alone.
- Last layer, head 0 (`COPYING_HEAD`) writes the embedding of the token that it attends to, which raises that token's
  logit. Where it attends is learned, with the help of the loss of `sleuth.read.rows_stage`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

Tokens = Sequence[int] | np.ndarray
"""The token ids of a passage."""
ALWAYS = 0
"""Reserved coordinate of the residual stream, which is the same for all tokens. Nothing else writes there at first."""
MARK = 4.0
"""Value of `ALWAYS` in an embedding, relative to the root mean square of its coordinates."""
COPYING_HEAD = 0
"""Its number in the last layer."""
MATCHING = ((0, 0), (1, 0), (1, 1), (2, 0))
"""(layer, head) of the heads that attend to tokens of the same content."""
LOOKING_BACK = ((-1, 1), (-2, 2))
"""(head of layer 0, tokens back)."""
SLOW_TURN = 3e-3
"""Rotary pairs that turn by fewer radians per token hold content: half a radian over a passage."""
BACK_PAIRS, SELF_PAIRS = 4, 6
"""The first rotary pairs, which encode distance: those that look back, and those that tell a token from itself."""
MATCHING_GAIN, BACK_GAIN = 1.35, 1.6
"""Gains of queries and keys of the same content, and of those that look back."""
AWAY = 1.1
"""How much a matching head avoids the token itself, relative to its content divided by the square root of the width."""
FAINT = 0.05
"""Factor on the content of heads that look back."""
WRITTEN, COPIED = 0.3, 0.7
"""Scales of what attention and MLPs write into the residual stream, and of what the copying head writes."""
WINDOW = 2
"""Neighbours on either side that count as a word's company."""
COMPANY_SIZE = 64
"""Dimensions of the vectors of company."""
SMOOTHING = 0.75
"""Exponent on the frequency of neighbours (Levy, Goldberg and Dagan 2015)."""
GRAMS = range(3, 6)
"""Lengths of the character n-grams."""
BUCKETS = 8192
"""Directions that n-grams are hashed to."""
SHORTEST, RARE = 0.3, 6.0
"""Length of the most frequent embeddings, and the log of passages per occurrence from which on it is 1."""


def begin_with_reading(model: PreTrainedModel, words: Sequence[str], passages: Sequence[Tokens], seed: int) -> None:
    """Overwrites all weights of a newly initialised model like Qwen3's (tied embeddings, normalised queries and keys,
    at least four layers and four heads, as many for keys as for queries). Deterministic for shape, seed and texts.

    `words` are the texts of the tokens, " city" with the space before it; `passages` the token ids of the texts.
    """
    generator = torch.Generator().manual_seed(seed)
    layers: list[Any] = list(cast(Any, model).model.layers)
    heads = _ReadingHeads(model, generator)
    with torch.no_grad():
        embeddings = cast(nn.Embedding, model.get_input_embeddings()).weight
        embeddings.copy_(reading_embeddings(words, passages, heads.width, generator))
        embeddings[:, ALWAYS] = MARK * embeddings.square().mean(dim=1).sqrt()
        for layer in layers:
            _draw(layer, generator)
        for layer, head in MATCHING:
            heads.match(layers[layer].self_attn, head)
        for head, distance in LOOKING_BACK:
            heads.look_back(
                layers[0].self_attn, heads.count + head, distance, pairs=BACK_PAIRS, faint=FAINT, scale=1 / MARK
            )
        for layer in layers[: 1 + max(layer for layer, _ in MATCHING)]:
            for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
                norm.weight[heads.slow] = MATCHING_GAIN
        for norm in (layers[0].self_attn.q_norm, layers[0].self_attn.k_norm):
            norm.weight[heads.first(BACK_PAIRS)] = BACK_GAIN
        read = heads.frame()
        heads.carry(layers[-1].self_attn, COPYING_HEAD, read, COPIED * read)  # writes what it reads
        # Embeddings have length sqrt(width) at most; the logits are their product with a state of that length.
        cast(Any, model).model.norm.weight.fill_(heads.width**-0.5)


def _draw(layer: Any, generator: torch.Generator) -> None:
    """Random weights of a layer: of unit scale where it reads, of `WRITTEN` where it writes."""
    attention, mlp = layer.self_attn, layer.mlp
    writing = (attention.o_proj, mlp.down_proj)
    reading = (attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj)
    for part in (*reading, *writing):
        scale = WRITTEN if part in writing else 1.0
        part.weight.copy_(torch.randn(part.weight.shape, generator=generator) * scale / part.in_features**0.5)
        if part in writing:
            part.weight[ALWAYS] = 0


class Heads:
    """Sets the projection rows of single heads. What they read is 0 at the `reserved` coordinates."""

    def __init__(self, model: PreTrainedModel, generator: torch.Generator, reserved: Sequence[int]) -> None:
        config = cast(Any, model.config)
        self.size: int = config.head_dim
        self.width: int = config.hidden_size
        self.count: int = config.num_attention_heads
        self.half = self.size // 2
        self.generator = generator
        self.reserved = [*reserved]
        theta = float(config.rope_parameters["rope_theta"])
        self.turn = theta ** (-torch.arange(self.half, dtype=torch.float64) / self.half)  # radians per token

    def frame(self) -> Tensor:
        """Random orthonormal directions of the residual stream (head size, width)."""
        square = torch.linalg.qr(torch.randn(self.width, self.width, generator=self.generator))[0]
        directions = square[: self.size].clone()
        directions[:, self.reserved] = 0
        return directions

    def look_back(self, attention: Any, head: int, distance: int, *, pairs: int, faint: float, scale: float) -> None:
        """Attend `distance` tokens back, by the first rotary pairs: keys are rotated as if they were that much later.
        The content of queries and keys is `faint`."""
        query, key = torch.zeros(self.size), torch.zeros(self.size)
        phase = distance * self.turn[:pairs]
        query[:pairs] = 1
        key[:pairs], key[self.half : self.half + pairs] = phase.cos().float(), phase.sin().float()
        for part, constant in ((attention.q_proj, query), (attention.k_proj, key)):
            part.weight[self.rows(head)] *= faint
            part.weight[self.rows(head), ALWAYS] = constant * scale

    def carry(self, attention: Any, head: int, read: Tensor, written: Tensor) -> None:
        """Copy the attended token's content along one frame to this token along another."""
        attention.v_proj.weight[self.rows(head)] = read
        attention.o_proj.weight[:, self.rows(head)] = written.T

    def rows(self, head: int) -> slice:
        """The rows of a head."""
        return slice(head * self.size, (head + 1) * self.size)


class _ReadingHeads(Heads):
    def __init__(self, model: PreTrainedModel, generator: torch.Generator) -> None:
        super().__init__(model, generator, [ALWAYS])
        pairs = (self.turn < SLOW_TURN).nonzero().flatten()
        self.slow = torch.cat([pairs, self.half + pairs])  # dimensions of the pairs that hold content

    def first(self, pairs: int) -> Tensor:
        """The dimensions of the first rotary pairs."""
        return torch.cat([torch.arange(pairs), self.half + torch.arange(pairs)])

    def match(self, attention: Any, head: int) -> None:
        """Attend to tokens of the same content, a little less to the token itself."""
        projection = torch.zeros(self.size, self.width)
        projection[self.slow] = self.frame()[self.slow]
        constant = torch.zeros(self.size)
        constant[:SELF_PAIRS] = AWAY * (len(self.slow) / self.width) ** 0.5
        for part, sign in ((attention.q_proj, 1), (attention.k_proj, -1)):
            part.weight[self.rows(head)] = projection
            part.weight[self.rows(head), ALWAYS] = sign * constant / MARK


def reading_embeddings(
    words: Sequence[str], passages: Sequence[Tokens], width: int, generator: torch.Generator
) -> Tensor:
    """(V, width): random, by spelling and by company in equal parts; of length sqrt(width), and less for frequent
    words."""
    directions = torch.randn(len(words), width, generator=generator)
    turned = torch.linalg.qr(torch.randn(width, width, generator=generator))[0]
    company = company_vectors(passages, len(words), min(COMPANY_SIZE, width))
    company = F.normalize(company - company.mean(dim=0), dim=1) @ turned[: company.shape[1]]
    spelling = F.normalize(spelling_vectors(words, width), dim=1)
    mixed = F.normalize(directions + (spelling + company) * width**0.5, dim=1) * width**0.5
    return mixed * rarity(passages, len(words))[:, None]


def _neighbours(passages: Sequence[Tokens], count: int) -> tuple[np.ndarray, ...]:
    """Each word with each context of it, and how often: a context is another word at one of 2 x `WINDOW` places."""
    gap = np.full(WINDOW, -1)
    line = np.concatenate([np.concatenate([np.asarray(passage, dtype=np.int64), gap]) for passage in passages])
    found = []
    for distance in range(1, WINDOW + 1):
        inside = (line[:-distance] >= 0) & (line[distance:] >= 0)
        left, right = line[:-distance][inside], line[distance:][inside]
        for side, (word, neighbour) in enumerate(((left, right), (right, left))):
            pairs, together = np.unique(word * count + neighbour, return_counts=True)
            place = 2 * (distance - 1) + side
            found.append((pairs // count, place * count + pairs % count, together))
    words, contexts, together = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return words, contexts, together


def rarity(passages: Sequence[Tokens], count: int) -> Tensor:
    """(V,) between `SHORTEST` and 1: the log of the inverse share of passages with each token, over `RARE`."""
    occurrences = np.zeros(count)
    for passage in passages:
        occurrences[np.unique(np.asarray(passage, dtype=np.int64))] += 1
    return torch.from_numpy(np.log(max(1, len(passages)) / (occurrences + 1)) / RARE).clamp(SHORTEST, 1.0).float()


def spelling_vectors(words: Sequence[str], width: int) -> Tensor:
    """(V, width): the sum of a random direction for each n-gram of a word; 0 where it is not of ASCII letters."""
    table = torch.randn(BUCKETS, width, generator=torch.Generator().manual_seed(0))
    vectors = torch.zeros(len(words), width)
    for number, word in enumerate(words):
        buckets = [zlib.crc32(gram.encode()) % BUCKETS for gram in _grams(word.strip().lower())]
        if buckets:
            vectors[number] = table[buckets].sum(dim=0)
    return vectors


def _grams(word: str) -> Iterator[str]:
    """`^lived` itself and its parts of three to five letters; the end of a short word is marked too."""
    if word.isalpha() and word.isascii():
        marked = f"^{word}" + ("$" if len(word) < 4 else "")
        yield marked
        yield from (marked[at : at + size] for size in GRAMS for at in range(len(marked) - size + 1))


def company_vectors(passages: Sequence[Tokens], count: int, size: int) -> Tensor:
    """(V, size), rows of length 1 (0 for tokens without neighbours): tokens with the same neighbours at the same
    distances are near each other.

    The positive pointwise mutual information with the tokens one and two before and behind, log P(w, c) / (P(w) P'(c))
    with P' proportional to count^`SMOOTHING`, by truncated SVD; directions by the square root of their singular value.
    """
    words, contexts, together = _neighbours(passages, count)
    of_word = np.bincount(words, together, minlength=count)
    of_context = np.bincount(contexts, together, minlength=2 * WINDOW * count) ** SMOOTHING
    information = np.log(together * of_context.sum() / (of_word[words] * of_context[contexts]))
    positive = information > 0
    matrix = torch.sparse_coo_tensor(
        torch.from_numpy(np.stack([words[positive], contexts[positive]])),
        torch.from_numpy(information[positive]).float(),
        (count, 2 * WINDOW * count),
        check_invariants=False,  # or else torch warns that it does not check them
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        left_vectors, values, _ = torch.svd_lowrank(matrix, q=min(size + 16, count), niter=4)
    return F.normalize(left_vectors[:, :size] * values[:size].sqrt(), dim=1)
