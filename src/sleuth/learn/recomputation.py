"""Activations that are computed again in the backward pass instead of being kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from torch import nn
from transformers import PreTrainedModel

from sleuth.host.threads import to_stderr
from sleuth.kernels.card_pass import CardPass
from sleuth.kernels.device import free_memory
from sleuth.kernels.fused import fused_forwards, is_on
from sleuth.learn.logprobs import head_of, is_plain
from sleuth.learn.prefix_tree import PrefixTree
from sleuth.types import SleuthError


class Recomputation:
    """Gradient checkpointing of a model: all of its layers compute their activations again or, on a card that holds the
    model whole, only the first ones, as many as it takes for the others to fit. The gradients are the same."""

    def __init__(self, model: PreTrainedModel, *, whole: bool) -> None:
        self._modules = recomputed_layers(model)
        self._layers = [*getattr(model.base_model, "layers", ())]
        self._card_pass = card_pass_of(model) if whole else None
        self._share, self._kept = 1.0, 0

    @contextmanager
    def of_pass(self, tree: PrefixTree) -> Iterator[None]:
        """A pass over these tokens. Marks modules as training, and not their children: transformers recomputes only in
        training, and dropout stays off."""
        self._kept = self._kept_layers(tree)
        keeping = self._layers[len(self._layers) - self._kept :]  # the last, whose memory is free when others need it
        marked = [module for module in self._modules if not any(module is layer for layer in keeping)]
        for module in marked:
            module.training = True
        try:
            yield
        finally:
            for module in marked:
                module.training = False

    def keeps_less(self) -> bool:
        """After a pass that ran out of memory: whether later ones keep less than it did: half as much, and then
        nothing."""
        if not self._kept:
            return False
        self._share = self._share / 2 if self._share == 1 else 0
        to_stderr("out of memory: computing the activations of more layers again, and going on so")
        return True

    def _kept_layers(self, tree: PrefixTree) -> int:
        device = tree.tokens.device
        if self._card_pass is None or not self._share or device.type != "cuda" or not is_on():
            return 0
        return self._card_pass.kept_layers(len(tree), int(self._share * free_memory(device)))


def recomputed_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Enables gradient checkpointing; returns the modules that recompute once they are marked as training."""
    if not model.supports_gradient_checkpointing:
        raise SleuthError(f"gradient_checkpointing: {type(model).__name__} has none; leave the key out")
    # The name before transformers 6 and the one from it on.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False, "preserve_rng_state": False})  # nothing is drawn
    return [module for module in model.modules() if getattr(module, "gradient_checkpointing", False)]


def card_pass_of(model: PreTrainedModel) -> CardPass | None:
    """The memory of its passes on a card; None if a layer is not made of parts that are fused there."""
    fused = {id(module) for module, _ in fused_forwards(model)}
    layers = [*getattr(model.base_model, "layers", ())]
    parts = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
    if (
        is_plain(model)
        or not layers
        or any(id(getattr(layer, part, None)) not in fused for layer in layers for part in parts)
    ):
        return None
    config, attention, head = model.config.get_text_config(), layers[0].self_attn, cast(nn.Linear, head_of(model))
    return CardPass(
        layers=len(layers),
        width=config.hidden_size,
        heads=config.num_attention_heads,
        queries=config.num_attention_heads * attention.head_dim,
        keys=config.num_key_value_heads * attention.head_dim,
        mlp=config.intermediate_size,
        words=len(head.weight),
        qk_norm=hasattr(attention, "q_norm"),
        size=model.dtype.itemsize,
        trains_words=head.weight.requires_grad,
    )
