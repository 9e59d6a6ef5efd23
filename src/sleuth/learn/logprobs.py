"""Log-probabilities of given tokens. The shift by one (a position predicts the next token) lives in this file alone."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

LOGITS_AT_ONCE = 2**26
"""At most this many logits (256 MB in fp32) exist at a time; a larger projection is cut and recomputed backwards."""


def token_logprobs(
    model: PreTrainedModel, input_ids: Tensor, needed: Tensor, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Natural-log probability of each needed token given those before it, and the entropy of its distribution.

    `input_ids` (B, T) int64, padded on the right; `needed` (B, T) bool. Both results are (B, T) fp32, index t speaks of
    token t, and both are 0 where no token is needed and at t = 0, which nothing predicts. The entropy, in nats, carries
    no gradient. The softmax is taken in fp32 at `temperature`.

    The vocabulary projection runs only at positions that predict a needed token. There is no attention mask: under
    causal attention no token sees the padding behind it. The model must be a decoder whose logits are its output
    embeddings times its last hidden state (Qwen, Llama and kin; no soft-capped or rescaled logits).
    """
    body = model.base_model(input_ids=input_ids, use_cache=False)
    predicted = needed[:, 1:]  # (B, T - 1): position t predicts token t + 1
    hidden = body.last_hidden_state[:, :-1][predicted]  # (N, width)
    targets = input_ids[:, 1:][predicted]  # (N,)
    logprobs, entropies = _project(model, hidden, targets, temperature)
    return _place(logprobs, predicted), _place(entropies, predicted)


@torch.no_grad()
def token_hits(model: PreTrainedModel, input_ids: Tensor, needed: Tensor) -> Tensor:
    """(B, T) bool: where a needed token is the one that the model holds most likely. Otherwise as `token_logprobs`."""
    hidden = model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state[:, :-1]
    predicted = needed[:, 1:]
    likeliest = cast(nn.Linear, model.get_output_embeddings())(hidden[predicted]).argmax(dim=-1)  # (N,)
    return _place(likeliest == input_ids[:, 1:][predicted], predicted)


def _project(
    model: PreTrainedModel, hidden: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:  # (N,), (N,)
    head = cast(nn.Linear, model.get_output_embeddings())

    def score(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        distribution = (head(hidden).float() / temperature).log_softmax(dim=-1)  # (n, V)
        with torch.no_grad():
            entropy = -(distribution.exp() * distribution).sum(dim=-1)
        return distribution.gather(1, targets[:, None]).squeeze(1), entropy

    rows = max(1, LOGITS_AT_ONCE // head.weight.shape[0])
    if len(targets) <= rows:
        return score(hidden, targets)
    parts = [
        checkpoint(score, *part, use_reentrant=False, preserve_rng_state=False)
        for part in zip(hidden.split(rows), targets.split(rows), strict=True)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _place(values: Tensor, predicted: Tensor) -> Tensor:
    """N values back to the tokens they speak of: (B, T), one column further right than the positions that predict."""
    grid = values.new_zeros(predicted.shape).masked_scatter(predicted, values)
    return nn.functional.pad(grid, (1, 0))
