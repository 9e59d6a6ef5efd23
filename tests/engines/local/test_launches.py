"""Kernel launches of a decode step on a card, counted with fake tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen3Config, Qwen3ForCausalLM

from sleuth.engines.local.attention import Batch
from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.local.slots import SlotPlacement
from sleuth.engines.sampling import _sample

WITHOUT_LAUNCH = {"empty", "empty_like", "empty_strided", "new_empty", "detach", "lift_fresh", "_unsafe_view", "alias"}
LAYERS = 28


class Launches(TorchDispatchMode):
    """Counts operators that compute or move something: all but views and allocations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and func._schema.name.partition("::")[2] not in WITHOUT_LAUNCH:
            self.count += 1
        return func(*args, **(kwargs or {}))


class WithoutCard(TorchFunctionMode):
    """Transfers to a card and slices there: torch without CUDA refuses the calls, but not their operators."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.to:
            wanted = [*args[1:], *(kwargs or {}).values()]
            device = next((one for one in wanted if isinstance(one, torch.device)), args[0].device)
            dtype = next((one for one in wanted if isinstance(one, torch.dtype)), args[0].dtype)
            same = device.type == args[0].device.type and dtype == args[0].dtype
            return args[0] if same else torch.ops.aten._to_copy(args[0], device=device, dtype=dtype)
        if func is torch.Tensor.__getitem__ and args[0].device.type == "cuda":
            return sliced(*args)
        return func(*args, **(kwargs or {}))


def sliced(tensor: torch.Tensor, key: Any) -> torch.Tensor:
    """`tensor[key]` for new dimensions, slices, numbers and an ellipsis."""
    items, at = key if isinstance(key, tuple) else (key,), 0
    for number, item in enumerate(items):
        if item is None:
            tensor, at = tensor.unsqueeze(at), at + 1
        elif item is Ellipsis:
            at = tensor.dim() - sum(other is not None for other in items[number + 1 :])
        elif isinstance(item, slice):
            tensor, at = torch.ops.aten.slice(tensor, at, item.start, item.stop), at + 1
        else:
            tensor = tensor.select(at, item)
    return tensor


def on_card(model: nn.Module) -> Any:
    """The model with fake weights in bf16 on a card."""
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False, remove_duplicate=False):
            module._parameters[name] = nn.Parameter(torch.empty(weight.shape, dtype=torch.bfloat16, device="cuda"))
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device="cuda")
    model.tie_weights()
    return model


def ragged_engine(tokenizer, layers: int) -> LocalEngine:
    """256 decoding requests of 400 to 3,900 tokens in 32 groups with a prompt each, of a Qwen3-0.6B with fewer layers,
    on a card."""
    config = Qwen3Config(
        vocab_size=151_936,
        hidden_size=1_024,
        intermediate_size=3_072,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = on_card(Qwen3ForCausalLM(config))
    engine = LocalEngine(model.eval(), tokenizer, slots=256, context=4_096, cache_pages=256 * 16)
    random, table = np.random.default_rng(0), engine._table
    for slot in range(256):
        prompt = [slot // 8] * 300
        tokens = [*prompt, *random.integers(1_000, 100_000, int(random.integers(100, 3_600)))]
        table.occupy(SlotPlacement(slot=slot, source=slot, reused=0), tokens)
        table.cached[slot] = len(tokens) - 1
    return engine


def launches_of_a_step(tokenizer, layers: int, *, varlen: str | None) -> int:
    with FakeTensorMode(allow_non_fake_inputs=True), Launches() as launches, WithoutCard():
        engine = ragged_engine(tokenizer, layers)
        decoding, chunks = engine._schedule()
        assert len(decoding) == 256
        launches.count = 0
        with engine._inference_mode():
            model = engine.model
            batch = Batch(
                engine._table, decoding, chunks, engine._cache, device=model.device, dtype=model.dtype, varlen=varlen
            )
            logits = engine._forward(batch, np.arange(256))
            assert logits.shape == (256, 151_936)
            draws = torch.zeros(2, 256, dtype=torch.float64, device="cuda")
            _sample(logits.float(), *draws)
        return launches.count


@pytest.mark.parametrize(("varlen", "most"), [("pages", 1_000), ("copy", 1_100), (None, 1_600)])
def test_a_ragged_decode_step_of_a_0_6b_takes_few_kernel_launches(tokenizer, varlen, most):
    one, three = (launches_of_a_step(tokenizer, layers, varlen=varlen) for layers in (1, 3))
    a_layer = (three - one) // 2
    total = one + (LAYERS - 1) * a_layer
    print(f"{total} launches, {a_layer} a layer")
    assert total <= most
