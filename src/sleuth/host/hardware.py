"""GPUs by name, with the figures of their data sheets; and what of a machine decides the last bits of results."""

from __future__ import annotations

import difflib
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from sleuth.host.memory import parse_size, text_of
from sleuth.types import SleuthError

_CARDS = re.compile(r"(?:(\d+)\s*x\s*)?(\S.*?)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU: `memory` in bytes, `flops` a second (bfloat16, dense), and `bandwidth` of its memory in bytes a second.

    Memory counts as the name says it, in units of 10^9 bytes; what the driver reports is a little more.
    """

    name: str
    memory: int
    flops: float
    bandwidth: float


def _card(name: str, gigabytes: int, teraflops: float, bandwidth: float) -> Card:
    return Card(name=name, memory=gigabytes * 10**9, flops=teraflops * 1e12, bandwidth=bandwidth * 1e9)


CARDS = {
    card.name: card
    for card in (
        _card("l4", 24, 121, 300),
        _card("a10", 24, 125, 600),
        _card("rtx-3090", 24, 71, 936),
        _card("rtx-4090", 24, 165, 1008),
        _card("rtx-5090", 32, 210, 1792),
        _card("a100-40", 40, 312, 1555),
        _card("rtx-a6000", 48, 155, 768),
        _card("l40s", 48, 362, 864),
        _card("a100-80", 80, 312, 2039),
        _card("h100-80", 80, 989, 3350),
        _card("h200-141", 141, 989, 4800),
        _card("b200-180", 180, 2250, 8000),
    )
}
"""By name, least memory first, and the slower one first of two alike. The figures are those of the makers' data sheets,
without sparsity, of the SXM version where there are several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """`count` cards of one kind, each with a rank of its own."""

    count: int
    card: Card

    def __str__(self) -> str:
        return f"{self.count} x {self.card.name}"


def read_cards(text: str) -> Cards:
    """`8 x h100-80`, `1 x 80 GB` or `24GB`; without a number, one card. A size has the figures of the slowest card in
    the list with as much memory. Raises ValueError, which names the nearest card, for anything else."""
    found = _CARDS.fullmatch(text.strip())
    count, name = (int(found[1] or 1), found[2]) if found else (0, text)
    if not count:
        raise ValueError(f"{text!r} names no card: expected such as {_examples()}")
    if name in CARDS:
        return Cards(count=count, card=CARDS[name])
    if (size := _size(name)) is None:
        nearest = [f"{name}GB"] if name.isdecimal() else difflib.get_close_matches(name, CARDS, n=1, cutoff=0.4)
        hint = f"the nearest is {nearest[0]}" if nearest else f"expected such as {_examples()}"
        raise ValueError(f"no card is called {name!r}; {hint}; there are {', '.join(CARDS)}, or a size such as 24GB")
    alike = next((card for card in CARDS.values() if card.memory >= size), list(CARDS.values())[-1])
    shown = f"{size / 10**9:g} GB"
    return Cards(count=count, card=Card(name=shown, memory=size, flops=alike.flops, bandwidth=alike.bandwidth))


def card_with(memory: int) -> Card:
    """A card with so many bytes by its driver, and the figures of the largest card in the list that has no more; of two
    alike the slower one."""
    alike = max((card for card in CARDS.values() if card.memory <= memory), key=lambda card: card.memory, default=None)
    alike = alike or next(iter(CARDS.values()))
    return Card(name=f"{memory / 10**9:.0f} GB", memory=memory, flops=alike.flops, bandwidth=alike.bandwidth)


def _size(text: str) -> int | None:
    """Bytes of `80 GB`, `512MB` or `24GiB`; None for anything else, and for a number without a unit."""
    try:
        return parse_size(text) if text[-1:] in ("B", "b") else None
    except SleuthError:
        return None


def _examples() -> str:
    return '"h100-80", "8 x h100-80" or "1 x 80 GB"'


# -- this machine ------------------------------------------------------------------------------------------------------

VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NUMBA_CPU_NAME",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
"""Variables of the environment by which libraries choose their kernels. The number of threads is recorded apart."""
INSTRUCTIONS = re.compile(r"avx\w*|fma|f16c|amx_\w+|asimd\w*|sve\w*|bf16|i8mm|neon")
CPU_INFO, GPUS = Path("/proc/cpuinfo"), Path("/proc/driver/nvidia/gpus")


def machine() -> dict[str, str]:
    """The processor with its vector instructions, the GPUs, and the `VARIABLES` that are set. Imports no library."""
    info = text_of(CPU_INFO)
    model = re.search(r"^(?:model name|CPU part)\s*:\s*(.+)$", info, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", info, re.MULTILINE)
    found = sorted(flag for flag in (flags[1].split() if flags else ()) if INSTRUCTIONS.fullmatch(flag))
    gpus = [
        gpu[1].strip()
        for file in sorted(GPUS.glob("*/information"))
        if (gpu := re.search(r"^Model:\s*(.+)$", text_of(file), re.MULTILINE))
    ]
    return {
        "processor": model[1].strip() if model else platform.processor() or platform.machine(),
        "instructions": " ".join(found),
        "gpus": ", ".join(gpus),
        **{name: os.environ.get(name, "") for name in VARIABLES},
    }
