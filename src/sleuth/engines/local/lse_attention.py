"""Attention over a stretch of keys that tells the log-sum-exp, and how what was seen in two stretches becomes one."""

from __future__ import annotations

import torch
from torch import Tensor


def attend_with_lse(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, *, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """(b, h, n, D) queries, (b, h, L, D) keys and values -> the output and its log-sum-exp (b, h, n). `causal` needs a
    kernel."""
    if has_kernel(keys, values):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, keys, values, 0.0, causal, scale=scale)
    scores = (query @ keys.transpose(-1, -2)).float() * scale
    weight = scores.logsumexp(dim=-1)
    return (scores - weight[..., None]).exp().to(values.dtype) @ values, weight


def merge(output: Tensor, weight: Tensor, other: Tensor, of_other: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two stretches of keys from that over each, by their log-sum-exps."""
    share = torch.sigmoid(of_other - weight)[..., None].to(output.dtype)
    return torch.lerp(output, other, share), torch.logaddexp(weight, of_other)


def has_kernel(keys: Tensor, values: Tensor) -> bool:
    """Whether torch has one that tells the log-sum-exp."""
    return keys.device.type == "cpu" and keys.shape[-1] == values.shape[-1]
