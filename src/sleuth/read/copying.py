"""Where the copying head attends: the first head of the last layer, which is taught to attend to the token that the
answer copies.

The loss of an answer alone does not find that head: attention spread over a sentence raises no logit by much. A loss on
its attention, -log of its weight on the token to copy, does (supervised attention, arXiv:1609.04186). It is computed
from the queries and keys of the same forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sleuth.learn.losses import supervised_loss
from sleuth.learn.objective import SupervisedLoss
from sleuth.learn.policy import Update
from sleuth.learn.prefix_tree import Pack, gather_rows

COPYING_HEAD = 0
"""Its number in the last layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyingUpdate(Update):
    """What one step did: `copying_loss` is minus the log of the head's weight on the token to copy, 0 where none is; a
    mean as the others."""

    copying_loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyingLoss(SupervisedLoss):
    """Cross-entropy on the trained tokens, plus `copying` times that of where the copying head attends, on those that
    copy a token, if the batch has sources."""

    copying: float

    @property
    def is_sum_over_tokens(self) -> bool:
        return False

    def attention_loss(self) -> CopyingHead:
        return CopyingHead(self.copying)


class CopyingHead:
    """The loss, times `weight`, of where the copying head attends in a forward pass over a prefix tree."""

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self._kept: tuple[Tensor, Tensor, float] | None = None

    def observe(self, layer: Any, query: Tensor, key: Tensor, scale: float) -> None:
        """Keeps the queries and keys of the head: `query` (1, H, N, D), `key` (1, kv_heads, N, D)."""
        if layer.layer_idx == layer.config.num_hidden_layers - 1:
            self._kept = query[0, COPYING_HEAD], key[0, COPYING_HEAD], scale

    def loss(self, part: Pack) -> tuple[Tensor, dict[str, Tensor]]:
        """Its share in the loss of the step, and the statistic `copying_loss`."""
        attended = self._logprobs(part)
        return self.weight * supervised_loss(attended, part.rows.weights), {"copying_loss": -attended.detach()}

    def _logprobs(self, pack: Pack) -> Tensor:
        """(R, T) fp32: the log of the head's weight, where token t is predicted, on the token of the row that t copies;
        0 where it copies none."""
        rows, nodes, host = pack.rows, pack.tree.nodes, pack.on_host.rows
        assert self._kept is not None  # the forward pass is over
        assert rows.sources is not None
        assert host.sources is not None
        query, key, scale = self._kept
        row, place = map(pack.send, ((host.sources >= 0) & host.trained).nonzero(as_tuple=True))  # (M,), (M,)
        queries = gather_rows(query, nodes[row, place - 1])  # (M, D)
        keys = gather_rows(key, nodes.flatten()).view(*nodes.shape, -1)  # (R, T, D)
        scores = torch.einsum("md,mtd->mt", queries.float(), gather_rows(keys, row).float()) * scale
        ahead = torch.arange(nodes.shape[1], device=nodes.device) >= place[:, None]
        of_sources = scores.masked_fill(ahead, -torch.inf).log_softmax(dim=1).gather(1, rows.sources[row, place, None])
        return torch.zeros_like(rows.weights).index_put((row, place), of_sources[:, 0])
