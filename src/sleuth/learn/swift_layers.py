"""Which modules of a model compute the same by our compiled loops, in fewer passes over memory than torch takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers.activations import SiLUActivation
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP, Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm

from sleuth.learn.compiled import can_be_read
from sleuth.learn.gating import swish_product
from sleuth.learn.norms import rms_norm

NORMS = (LlamaRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm)
"""Multiply by their weight. Those of other families (Gemma's by 1 + weight) have the same parts and differ."""
GATED = (LlamaMLP, Qwen2MLP, Qwen3MLP)
SILU = (SiLUActivation, nn.SiLU)


def swift_forwards(model: nn.Module) -> list[tuple[nn.Module, Callable[[Tensor], Tensor]]]:
    """Norms and gated feed-forward blocks, with what to compute in their stead, for `replaced_forwards`.

    What the loops cannot read (other types than fp32, other devices than a CPU, shards) is computed as before. Modules
    whose forward was replaced already are left out.
    """
    forwards: list[tuple[nn.Module, Callable[[Tensor], Tensor]]] = []
    for module in model.modules():
        if "forward" in module.__dict__:
            continue
        if type(module) in NORMS:
            forwards.append((module, partial(_normalised, module)))
        elif type(module) in GATED and type(module.act_fn) in SILU:
            forwards.append((module, partial(_fed_forward, module)))
    return forwards


def _normalised(norm: Any, inputs: Tensor) -> Tensor:
    if can_be_read(inputs, norm.weight):
        return rms_norm(inputs, norm.weight, norm.variance_epsilon)
    return type(norm).forward(norm, inputs)


def _fed_forward(block: Any, inputs: Tensor) -> Tensor:
    gate, up = block.gate_proj(inputs), block.up_proj(inputs)
    if can_be_read(gate, up):
        return block.down_proj(swish_product(gate, up))
    return block.down_proj(block.act_fn(gate) * up)
