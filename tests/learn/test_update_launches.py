"""Launches of an optimiser step of Qwen3-0.6B on a card, counted with fake tensors."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import clip_grad
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen3Config, Qwen3ForCausalLM

from sleuth.learn.master_weights import MasterWeights
from sleuth.learn.optim import Optimisation, Optimiser

CONFIG = Qwen3Config(
    vocab_size=151_936,
    hidden_size=1_024,
    intermediate_size=3_072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    tie_word_embeddings=True,
)
WITHOUT_LAUNCH = {"empty", "empty_like", "detach", "device", "split_with_sizes"}
LISTS = {12: ((110, 64, 48, 36), 320), 13: ((770, 448, 336, 252), 2240)}
"""CUDA -> the tensors, by the lists there are, and the parts of 65,536 elements that torch gives one kernel at most
(`MultiTensorApply.cuh`)."""


def kernels_of_lists(lists: int, sizes: list[int], cuda: int) -> int:
    """Kernels of an operator on so many lists of tensors of these sizes."""
    most, most_parts = LISTS[cuda][0][lists - 1], LISTS[cuda][1]
    kernels = tensors = parts = 0
    for size in sizes:
        tensors += 1
        for left in reversed(range(-(-size // 65_536))):
            parts += 1
            if parts == most_parts or (tensors == most and not left):
                kernels, parts, tensors = kernels + 1, 0, int(left > 0)
    return kernels + (parts > 0)


class Counted(TorchDispatchMode):
    """`operators` by name, but for views and allocations, the `kernels` that they are by the version of CUDA, and
    those for which the host waits; `largest` are the bytes of the largest tensor that is made. Numbers that the host
    reads are 1."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: Counter[str] = Counter()
        self.kernels: Counter[int] = Counter()
        self.waits: list[str] = []
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.partition("::")[2]
        if name == "_local_scalar_dense":
            self.waits.append(name)
            return 1
        if name in ("_to_copy", "copy_"):
            devices = {one.device.type for one in args if isinstance(one, torch.Tensor)}
            devices |= {torch.device(one).type for one in [(kwargs or {}).get("device")] if one is not None}
            self.waits += [name] * (len(devices) > 1)
        if not func.is_view and name not in WITHOUT_LAUNCH:
            self.operators[name] += 1
            lists = [one for one in args if isinstance(one, list) and one][:4]
            for cuda in LISTS:
                sizes = [tensor.numel() for tensor in lists[0]] if name.startswith(("_foreach", "_fused")) else []
                one = 1 + (name == "count_nonzero")
                self.kernels[cuda] += kernels_of_lists(len(lists), sizes, cuda) if sizes else one
        result = func(*args, **(kwargs or {}))
        if not func.is_view and isinstance(result, torch.Tensor):
            self.largest = max(self.largest, result.nbytes)
        return result


def on_a_card(dtype: torch.dtype) -> Qwen3ForCausalLM:
    with torch.device("meta"):
        model = Qwen3ForCausalLM(CONFIG)
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False, remove_duplicate=False):
            module._parameters[name] = nn.Parameter(torch.empty(weight.shape, dtype=dtype, device="cuda"))
    model.tie_weights()
    return model


def give_gradients(model: nn.Module) -> None:
    for weight in model.parameters():
        weight.grad = torch.empty_like(weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_optimiser_step_of_a_0_6b_takes_few_launches_and_two_waits(monkeypatch, dtype) -> None:
    """Operators; on lists of tensors each is a kernel for 147 million elements with CUDA 13, for 21 million before."""
    monkeypatch.setattr(clip_grad, "_has_foreach_support", lambda tensors, device: True)  # knows no fake tensors
    with FakeTensorMode():
        model = on_a_card(dtype)
        masters = MasterWeights(model)
        assert len(masters.tensors) == 310
        optimiser = Optimiser(model, masters.tensors, Optimisation(steps=9, learning_rate=1e-4))
        largest = model.get_input_embeddings().weight.numel()
        for first in (True, False):
            with Counted() as passes:
                for _ in range(2):
                    give_gradients(model)
                    masters.collect_gradients()
            with Counted() as counted:
                masters.clip_gradients(1.0)
                optimiser.step()
                masters.discard_gradients()
                masters.publish()
            moments = counted.operators.pop("zeros_like", 0) + counted.operators.pop("zeros", 0)
            assert moments == 3 * 310 * first
    print(f"{dtype}: {passes.operators.total()} operators move the gradients of two passes, {dict(passes.kernels)}")
    print(f"{counted.operators.total()} step, {dict(counted.kernels)} kernels by CUDA: {dict(counted.operators)}")
    assert passes.waits == []
    assert counted.waits == ["_local_scalar_dense"] * 2
    assert counted.operators.total() + passes.operators.total() <= 60
    assert counted.kernels[13] <= 70
    assert counted.largest == largest * dtype.itemsize, "a copy of as many elements as the largest weight has"


def test_the_count_of_steps_is_on_the_card_also_after_a_checkpoint_that_has_it_on_the_host() -> None:
    class Weights(nn.Module):
        device = torch.device("cuda", 0)

        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3, bias=False, device="meta")
            self.head.weight = nn.Parameter(torch.empty(3, 4, device="cuda", dtype=torch.bfloat16))

        def get_output_embeddings(self) -> nn.Module:
            return self.head

    def optimiser_of(model):
        return Optimiser(model, MasterWeights(model).tensors, Optimisation(steps=9, learning_rate=1e-4))

    def stepped(optimiser):
        with Counted():
            for [weight] in optimiser.stepped.values():
                weight.grad = torch.zeros_like(weight)
            optimiser.step()
        [state] = optimiser.parts["adamw"].state.values()
        assert {value.device.type for value in state.values()} == {"cuda"}
        assert (state["step"].shape, state["step"].dtype) == ((), torch.float32)
        return optimiser.state_dict()

    with FakeTensorMode():
        saved = stepped(optimiser_of(Weights()))
        saved["parts"]["adamw"]["state"][0]["step"] = torch.tensor(5.0)
        resumed = optimiser_of(Weights())
        resumed.load_state_dict(saved)
        stepped(resumed)
