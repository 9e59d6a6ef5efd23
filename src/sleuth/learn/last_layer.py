"""The last layer of a decoder, where most tokens are looked at by nobody: only those that predict a trained token, or
that the next one is sampled from, go on to the vocabulary.

Keys and values are needed of all. What comes of the queries, behind attention and in the feed-forward block is computed
for the wanted tokens alone. Nothing else of the model reads the others there, so values and gradients are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import PreTrainedModel

LEAST_SPARED = 1 / 8
"""Of the tokens; where fewer are unwanted, picking the others out costs as much as it spares."""


class Sight(Protocol):
    """What a model's attention is given as an extra argument, and knows which tokens are looked at in the end."""

    wanted: Tensor | None
    """(M,) of the T tokens, rising; None: all."""

    def narrowed(self) -> Sight:
        """What attention is given in the last layer, where no other token's queries matter."""
        ...


def where_wanted(wanted: Tensor, count: int) -> Tensor | None:
    """`wanted` as a sight should have it: None where that is nearly all of the `count` tokens."""
    return wanted if len(wanted) <= (1 - LEAST_SPARED) * count else None


@contextmanager
def sparing_last_layer(model: PreTrainedModel, name: str) -> Iterator[None]:
    """While it lasts, the last layer computes what the sight `name`, an extra argument of every forward, wants.

    A model whose last layer is not built of `self_attn.q_proj`, `self_attn.o_proj` and a gated `mlp` (as Qwen's,
    Llama's and their kin's are) computes everything as before.
    """
    layer = _last_layer(model)
    with ExitStack() as hooks:
        if layer is not None:
            spared = _Spared(name)
            hooks.callback(layer.self_attn.register_forward_pre_hook(spared.enter, with_kwargs=True).remove)
            for part in (layer.self_attn.q_proj, layer.self_attn.o_proj, layer.mlp):
                hooks.callback(part.register_forward_pre_hook(spared.pick).remove)
                hooks.callback(part.register_forward_hook(spared.put_back).remove)
        yield


def _last_layer(model: PreTrainedModel) -> Any:
    """None where it has other parts."""
    layers = getattr(model.base_model, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        return None
    parts = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
    names = {name for name, _ in layers[-1].named_modules()}
    return layers[-1] if names.issuperset(parts) else None


class _Spared:
    """The hooks of the last layer, and what they tell each other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.wanted: Tensor | None = None
        self.count = 0

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """The attention begins, the first that picks: also where the layer runs again in the backward pass, when other
        forwards may have come between."""
        sight: Sight = kwargs[self.name]
        self.wanted = sight.wanted
        return args, kwargs if self.wanted is None else {**kwargs, self.name: sight.narrowed()}

    def pick(self, module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        """(1, T, width) -> (1, M, width)."""
        if self.wanted is None:
            return args
        self.count = args[0].shape[1]
        return (args[0].index_select(1, self.wanted),)

    def put_back(self, module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
        """(1, M, width) -> (1, T, width), 0 where nobody looks."""
        if self.wanted is None:
            return output
        return output.new_zeros(1, self.count, output.shape[-1]).index_copy(1, self.wanted, output)
