"""Skips unused outputs of a decoder's last layer: only tokens that predict a trained token, or that the next token is
sampled from, go on to the vocabulary.

Keys and values are computed for all tokens; queries, the attention output and the feed-forward block only for the
output tokens. Nothing reads the others, so values and gradients are unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

MIN_UNUSED_SHARE = 1 / 8
"""With a smaller share of unused tokens, indexing costs as much as it saves."""


def select_outputs(indices: Tensor, count: int) -> Tensor | None:
    """`indices`, or None (all) if they are nearly all of the `count` tokens."""
    return indices if len(indices) <= (1 - MIN_UNUSED_SHARE) * count else None


@contextmanager
def skip_unused_outputs(model: PreTrainedModel, name: str) -> Iterator[None]:
    """In this context the last layer computes only what an extra argument of every forward, `name`, selects by its
    `output_indices` (M,) of the T tokens, ascending; None: all. That layer gets its `for_last_layer()` instead.

    Does nothing for a model whose last layer is not built of `self_attn.q_proj`, `self_attn.o_proj` and a gated `mlp`
    as those of Qwen and Llama are.
    """
    layer = _last_layer(model)
    with ExitStack() as hooks:
        if layer is not None:
            selection = _OutputSelection(name)
            hooks.callback(layer.self_attn.register_forward_pre_hook(selection.enter, with_kwargs=True).remove)
            for part in (layer.self_attn.q_proj, layer.self_attn.o_proj, layer.mlp):
                hooks.callback(part.register_forward_pre_hook(selection.gather).remove)
                hooks.callback(part.register_forward_hook(selection.scatter).remove)
        yield


def _last_layer(model: PreTrainedModel) -> Any:
    """The last layer, or None if it has other parts."""
    layers = getattr(model.base_model, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        return None
    parts = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
    names = {name for name, _ in layers[-1].named_modules()}
    return layers[-1] if names.issuperset(parts) else None


class _OutputSelection:
    """The hooks of the last layer and their shared state."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.indices: Tensor | None = None
        self.count = 0

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Runs first, when attention starts. A checkpointed layer runs again in the backward pass, possibly after other
        forwards, so the indices are read each time."""
        context = kwargs[self.name]
        self.indices = context.output_indices
        return args, kwargs if self.indices is None else {**kwargs, self.name: context.for_last_layer()}

    def gather(self, module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        """(1, T, width) -> (1, M, width)."""
        if self.indices is None:
            return args
        self.count = args[0].shape[1]
        return (args[0].index_select(1, self.indices),)

    def scatter(self, module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
        """(1, M, width) -> (1, T, width), 0 for unused tokens."""
        if self.indices is None:
            return output
        return output.new_zeros(1, self.count, output.shape[-1]).index_copy(1, self.indices, output)
