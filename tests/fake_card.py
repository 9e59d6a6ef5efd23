"""A card of fake tensors: shapes and operators without numbers, and what a card would wait for."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen3Config, Qwen3ForCausalLM

from sleuth.engines import sampling
from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.local.slots import SlotPlacement

WITHOUT_LAUNCH = {"empty", "empty_like", "empty_strided", "new_empty", "detach", "lift_fresh", "_unsafe_view", "alias"}

WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal"}


class Launches(TorchDispatchMode):
    """Counts operators that compute or move something: all but views and allocations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and func._schema.name.partition("::")[2] not in WITHOUT_LAUNCH:
            self.count += 1
        return func(*args, **(kwargs or {}))


class HostWaits(TorchDispatchMode):
    """Counts operators for which the host waits: those that give it numbers, or as many results as the numbers say, and
    transfers that are not left to the card."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func._schema.name.partition("::")[2], kwargs or {}
        waits = name in WAITS
        if name == "_to_copy":
            to = torch.device(kwargs.get("device") or args[0].device)
            waits = to.type != args[0].device.type and not kwargs.get("non_blocking")
        elif name == "copy_":
            waits = args[0].device.type != args[1].device.type and not (len(args) > 2 and args[2])
        if waits:
            self.names.append(name)
        return func(*args, **kwargs)


class WithoutCard(TorchFunctionMode):
    """Transfers to a card and slices there: torch without CUDA refuses the calls, but not their operators."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.copy_ and args[0].device.type == "cuda":
            return torch.ops.aten.copy_(args[0], args[1], (kwargs or {}).get("non_blocking", False))
        if func is torch.Tensor.to:
            later = bool((kwargs or {}).get("non_blocking"))
            wanted = [*args[1:], *(kwargs or {}).values()]
            device = next((one for one in wanted if isinstance(one, torch.device)), args[0].device)
            dtype = next((one for one in wanted if isinstance(one, torch.dtype)), args[0].dtype)
            same = device.type == args[0].device.type and dtype == args[0].dtype
            if same:
                return args[0]
            return torch.ops.aten._to_copy(args[0], device=device, dtype=dtype, non_blocking=later)
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


def use_kernel(monkeypatch: Any, attend: Any) -> None:
    """Replaces our kernel for pages by a function of the same arguments."""
    use_attention(monkeypatch, attend_by_pages=attend)


def use_attention(monkeypatch: Any, **functions: Any) -> None:
    """Replaces functions of our attention kernels, which need Triton."""
    name = "sleuth.kernels.attention_kernels"
    replaced = sys.modules.get(name)
    before = vars(replaced) if isinstance(replaced, SimpleNamespace) else {}
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(**(before | functions)))


def two_launches(query: torch.Tensor, *others: Any) -> torch.Tensor:
    """What our kernel for pages is to fake tensors: one launch for the parts of the keys, one that weighs them."""
    filled = [other for other in others[-1:] if isinstance(other, torch.Tensor)]
    return filled[0].copy_(query.neg()) if filled else query.contiguous().neg().neg()


def use_prefill_kernel(monkeypatch: Any) -> None:
    """Replaces our kernel for prompts by one launch."""

    def fill(query: torch.Tensor, *others: Any) -> None:
        others[-1].copy_(query)

    use_attention(monkeypatch, attend_to_prompts=fill, tile_tokens=lambda dtype, sharing: 128 // sharing)


def use_sample_kernels(monkeypatch: Any, problem: str | None = None) -> None:
    """Replaces our kernels for sampling by what they are to fake tensors: a launch for the parts of the rows, one that
    finds the tokens. With a `problem` they are not used."""
    module = SimpleNamespace(sample_by_parts=lambda logits, *settings: torch.stack(settings).neg())
    monkeypatch.setitem(sys.modules, "sleuth.kernels.sample_kernels", module)
    monkeypatch.setattr(sampling, "sampling_problem", lambda device, dtype: problem)


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
    engine = LocalEngine(model.eval(), tokenizer, slots=256, context=4_096, cache_pages=256 * 64)
    random, table = np.random.default_rng(0), engine._table
    for slot in range(256):
        prompt = [slot // 8] * 300
        tokens = [*prompt, *random.integers(1_000, 100_000, int(random.integers(100, 3_600)))]
        table.occupy(SlotPlacement(slot=slot, source=slot, reused=0), tokens)
        table.cached[slot] = len(tokens) - 1
        engine._decode_state.max_length[slot] = 4_096
    return engine
