"""A model's vocabulary made larger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from transformers import AddedToken, PreTrainedModel, PreTrainedTokenizerFast


def add_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[str]:
    """Make each text a token of its own, wherever the tokenizer writes it with several; those that were added.

    Their embeddings are drawn from the normal distribution that those of the other words have, the same ones every
    time (Hewitt, 2021). The mean of what a text was written with will not do: single bytes are hardly ever trained, so
    that they all lie in one place, and no attention tells their means apart. Rows beyond the tokenizer's words, which
    some models have, are used first.
    """
    added = [text for text in texts if len(tokenizer.encode(text, add_special_tokens=False)) > 1]
    known = len(tokenizer)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in added])
    if len(tokenizer) > cast(nn.Embedding, model.get_input_embeddings()).num_embeddings:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    tables = {
        id(table): table for table in map(_weights, (model.get_input_embeddings(), model.get_output_embeddings()))
    }
    with torch.no_grad():
        for table in tables.values():  # one where they are tied
            table[known : known + len(added)] = _alike(table[:known], len(added))
    return added


def _weights(module: object) -> Tensor:
    return cast(nn.Embedding, module).weight


def _alike(rows: Tensor, count: int) -> Tensor:
    """So many draws with the mean and the covariance of the rows."""
    mean = rows.float().mean(dim=0)
    draws = torch.randn(count, len(rows), generator=torch.Generator().manual_seed(0)).to(rows.device)
    return (mean + draws @ (rows.float() - mean) / len(rows) ** 0.5).to(rows.dtype)
