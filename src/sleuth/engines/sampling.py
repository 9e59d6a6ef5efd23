"""Drawing tokens: one uniform number a token, known from the request's key alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch


def uniforms(key: Sequence[int], n: int) -> list[float]:
    """The n random numbers in [0, 1) of the request named `key`; the i-th is for its i-th token.

    A counter-based generator (Philox) keyed by a hash of `key`: nothing that runs beside the request can shift them.
    """
    digest = hashlib.blake2b(",".join(str(int(part)) for part in key).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little"))).random(n).tolist()


def sample(logits: torch.Tensor, temperatures: torch.Tensor, draws: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row with its log-probability: `logits` (B, V), `temperatures` (B) and `draws` (B) -> (B), (B).

    The whole vocabulary is the support. The token is where the cumulative distribution passes the row's draw; at
    temperature 0 it is the likeliest, and the log-probability reported is the one at temperature 1. A token of
    probability zero is never drawn. Log-probabilities are fp32, the cumulative sum fp64.
    """
    greedy = temperatures == 0
    logprobs = (logits.float() / temperatures.masked_fill(greedy, 1.0)[:, None]).log_softmax(-1)  # (B, V)
    cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)  # (B, V)
    total = cumulative[:, -1]
    threshold = torch.minimum(draws.double() * total, torch.nextafter(total, torch.zeros_like(total)))
    # The first entry above the threshold has grown from its predecessor, so its probability is not zero.
    tokens = torch.searchsorted(cumulative, threshold[:, None], right=True)[:, 0]
    tokens = torch.where(greedy, logprobs.argmax(-1), tokens).clamp(max=logits.shape[-1] - 1)
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]
