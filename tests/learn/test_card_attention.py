"""Which kernels FlexAttention runs by on a card, without one: dense attention stands for both."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor

from sleuth.learn import card_attention
from sleuth.learn.card_attention import BLACKWELL, FLASH, ancestor_block_mask, flex, has_flash

CPU = torch.device("cpu")
SHAPE = (torch.bfloat16, 4, 2, 16)


class Kernels:
    """Dense attention by the ancestor test; `asked` are the options of each call. With FLASH the output is changed by
    `flash`."""

    def __init__(self) -> None:
        self.asked: list[dict | None] = []
        self.flash = lambda output: output

    def __call__(self, query, key, value, *, block_mask, scale, enable_gqa, kernel_options) -> Tensor:
        self.asked.append(kernel_options)
        key, value = (tensor.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for tensor in (key, value))
        at = torch.arange(query.shape[2])
        hidden = ~block_mask.mask_mod(0, 0, at[:, None], at[None])
        scores = (query @ key.transpose(-1, -2) * scale).masked_fill(hidden, float("-inf"))
        output = scores.softmax(-1) @ value
        return self.flash(output) if kernel_options == FLASH else output


@pytest.fixture
def kernels(monkeypatch) -> Iterator[Kernels]:
    """Kernels of a Blackwell with flash-attn-4, with nothing tried yet."""
    found = Kernels()
    monkeypatch.setattr(card_attention, "_compiled_flex", lambda: found)
    monkeypatch.setattr(card_attention, "_capability", lambda device: BLACKWELL)
    monkeypatch.setattr(card_attention, "_is_installed", lambda: True)
    has_flash.cache_clear()
    yield found
    has_flash.cache_clear()


def attend(*, windowed: bool = False, dtype: torch.dtype = torch.bfloat16) -> None:
    mask = ancestor_block_mask(torch.full((130,), 130))
    query, key, value = (torch.randn(1, heads, 130, 16, dtype=dtype) for heads in (4, 2, 2))
    flex(query, key, value, mask, 0.25, windowed=windowed)


def test_flash_attention_is_tried_once_for_a_shape_and_then_used_where_it_can_be(kernels, capsys) -> None:
    attend()
    attend()
    assert kernels.asked == [None, FLASH, FLASH, FLASH]
    kernels.asked.clear()
    attend(windowed=True)
    attend(dtype=torch.float32)
    assert kernels.asked == [None, None], "neither has kernels there"
    assert capsys.readouterr().err == ""


def refuse(output: Tensor) -> Tensor:
    raise ValueError("Invalid BACKEND value 'FLASH'.\nand more")


@pytest.mark.parametrize(
    ("flash", "reason"),
    [
        (lambda output: output * 1.05, "an error of 5"),
        (lambda output: output.detach() + (output - output.detach()) * 0.9, "an error of 10"),
        (lambda output: output * float("nan"), "an error of nan%"),
        (refuse, "ValueError: Invalid BACKEND value 'FLASH'.\n"),
    ],
    ids=["output", "gradient", "nan", "refused"],
)
def test_a_problem_of_flash_attention_is_one_line_and_the_usual_kernels(kernels, capsys, flash, reason) -> None:
    kernels.flash = flash
    for _ in range(2):
        attend()
    assert kernels.asked[2:] == [None, None]
    said = capsys.readouterr().err
    assert said.startswith(f"attention runs by torch's own kernels and not by flash-attn-4: {reason}")
    assert said.count("\n") == 1


def test_running_out_of_memory_is_no_answer(kernels) -> None:
    def exhausted(output: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    kernels.flash = exhausted
    with pytest.raises(torch.OutOfMemoryError):
        has_flash(CPU, *SHAPE)
    kernels.flash = lambda output: output
    assert has_flash(CPU, *SHAPE)


@pytest.mark.parametrize(("capability", "installed"), [((9, 0), True), (BLACKWELL, False)])
def test_without_the_card_or_the_package_nothing_is_tried(kernels, monkeypatch, capability, installed) -> None:
    monkeypatch.setattr(card_attention, "_capability", lambda device: capability)
    monkeypatch.setattr(card_attention, "_is_installed", lambda: installed)
    monkeypatch.setitem(card_attention.KERNEL_OPTIONS, capability, {16: {"BLOCK_M": 64}})
    attend()
    assert kernels.asked == [{"BLOCK_M": 64}], "as the table says"


def test_the_package_is_looked_for(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    assert not card_attention._is_installed()
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    assert not card_attention._is_installed()


def test_a_checkpoint_does_not_see_the_try(kernels) -> None:
    saved = []
    with torch.no_grad(), torch.autograd.graph.saved_tensors_hooks(saved.append, lambda tensor: tensor):
        assert has_flash(CPU, *SHAPE)
    assert saved == []
