"""PrefixGrouper (arXiv:2506.05433), its published package: a group's prompt is computed once, its answers beside it.

The package's own attention passes Transformers a two-dimensional padding mask, which only flash attention accepts, and
that does not run on a CPU. So an attention is registered here: the package splits, repeats and joins as in its own, and
each half runs in Transformers' SDPA, the prompt causally, the answers under a mask that is built once per micro-batch
for all layers. The vocabulary is projected only for the tokens of answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from prefix_grouper import PrefixGrouper  # pyright: ignore[reportMissingImports]
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from benchmarks.plain_update import PlainUpdate
from benchmarks.sides import Terms
from sleuth.learn.batch import Row

GROUPED = "prefix_grouper_sdpa"


class Grouped(PlainUpdate):
    """Micro-batches of `setting` groups; the prefix of a group is all that comes before its first trained token."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self.model.config._attn_implementation = GROUPED

    def micro_batches(self, rows: Sequence[Row]) -> list[Sequence[Row]]:
        """`setting` whole groups at a time."""
        size = self.terms.setting * self.terms.siblings
        return [rows[first : first + size] for first in range(0, len(rows), size)]

    def predictions(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
        """One forward pass over prompts and answers; hidden states, targets and advantages of the trained tokens."""
        prefix = rows[0].trained.index(True)
        prompts = torch.tensor([row.tokens[:prefix] for row in rows[:: self.terms.siblings]])  # (groups, P)
        answers = pad_sequence([torch.tensor(row.tokens[prefix:]) for row in rows], batch_first=True)  # (B, S)
        written = pad_sequence([torch.ones(len(row.tokens) - prefix) for row in rows], batch_first=True).bool()
        present = torch.ones_like(prompts).bool()
        grouper = PrefixGrouper.from_ungrouped_masks(present, written, self.terms.siblings)
        hidden = self.model.base_model(
            input_ids=grouper.concat_input(prompts, present, answers, written),
            position_ids=_positions(grouper),
            use_cache=False,
            prefix_grouper=grouper,
            answers_mask=_answers_mask(grouper, prefix),
        ).last_hidden_state
        _, _, after, _ = grouper.split_output(hidden, include_prefix_last=1)  # (B, 1 + S, width)
        trained = pad_sequence([torch.tensor(row.trained[prefix:]) for row in rows], batch_first=True)
        advantages = torch.tensor([row.advantage for row in rows])[:, None].expand(trained.shape)
        return after[:, :-1][trained], answers[trained], advantages[trained]


def attend_grouped(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    prefix_grouper: PrefixGrouper,
    answers_mask: Tensor,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention of one layer: prompts attend to themselves, answers to their prompt and themselves."""

    def attend(q: Tensor, k: Tensor, v: Tensor, padding: Tensor) -> Tensor:
        mask = None if q.shape[2] == k.shape[2] else answers_mask
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, q, k, v, mask, **options)[0]

    return prefix_grouper.forward(attend, query, key, value), None


def _positions(grouper: PrefixGrouper) -> Tensor:
    """Every answer continues the positions of its prompt."""
    rows = [
        torch.cat([torch.arange(group.prefix_len)] + [group.prefix_len + torch.arange(n) for n in group.suffix_lens])
        for group in grouper.group_info
    ]
    return pad_sequence(rows, batch_first=True)


def _answers_mask(grouper: PrefixGrouper, prefix: int) -> Tensor:
    """(B, 1, S, P + S) bool: an answer's token attends to its prompt and to the earlier tokens of its answer."""
    padding = grouper.suffix_attn_mask  # (B, P + S)
    length = padding.shape[1] - prefix
    before = torch.ones(length, length + prefix).tril(diagonal=prefix).bool()
    return padding[:, None, None] & before


AttentionInterface.register(GROUPED, attend_grouped)
