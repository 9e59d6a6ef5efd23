"""Padded batches in plain torch: all rows computed in full, logits only for trained tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmarks.plain_update import PlainUpdate
from sleuth.learn.batch import Row


class Padded(PlainUpdate):
    """Micro-batches of `setting` rows, padded on the right: causal attention then needs no mask, which is fastest."""

    def micro_batches(self, rows: Sequence[Row]) -> list[Sequence[Row]]:
        """`setting` rows at a time."""
        size = self.terms.setting
        return [rows[first : first + size] for first in range(0, len(rows), size)]

    def predictions(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
        """One forward pass over all rows; hidden states, targets and advantages of the trained tokens."""
        device = self.model.device
        tokens = pad_sequence([torch.tensor(row.tokens) for row in rows], batch_first=True).to(device)  # (B, T)
        trained = pad_sequence([torch.tensor(row.trained) for row in rows], batch_first=True)[:, 1:].to(device)
        hidden = self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state  # (B, T, width)
        advantages = torch.tensor([row.advantage for row in rows], device=device)[:, None].expand(trained.shape)
        return hidden[:, :-1][trained], tokens[:, 1:][trained], advantages[trained]
