"""The card of a check: its name, its peak, and its memory. A CPU stands in where the check itself is tested."""

from __future__ import annotations

import gc
import re
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch

from sleuth.host.hardware import CARDS, Card

PEAKS = {
    "h100 pcie": 756,
    "h100 nvl": 835,
    "h800": 989,
    "gh200": 989,
    "h20": 148,
    "gb200": 2_250,
    "a800": 312,
    "l40": 181,
    "a10g": 70,
    "a30": 165,
    "a40": 150,
    "rtx 6000 ada": 364,
}
"""Dense bf16 TFLOP/s with sums in fp32, from the data sheets, of cards that recipes are not planned for; by the words
of their names."""

ASKED = (
    "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.draw", "power.limit",
    "temperature.gpu", "pstate",
)  # fmt: skip
"""Of nvidia-smi."""

FAST = 700e12
"""Bars of speed hold for cards with this peak or more: data-centre cards of 2022 and later."""


def peak_flops(name: str) -> float | None:
    """The dense bf16 FLOP/s of a card by its name; None if it is not listed. `peak_flops("NVIDIA H100 80GB HBM3")` is
    989e12."""
    if (teraflops := next((peak for known, peak in PEAKS.items() if _has_words(name, known)), None)) is not None:
        return teraflops * 1e12
    card = planned_card(name)
    return None if card is None else card.flops


def planned_card(name: str) -> Card | None:
    """The card that recipes are planned for, by its name; None if it is not listed. Of two with the same name but for
    their memory, the one whose memory the name has. `planned_card("NVIDIA H200").name` is `h200-141`."""
    if any(_has_words(name, known) for known in PEAKS):
        return None
    alike = [card for card in CARDS.values() if _has_words(name, card.name.removesuffix(f"-{card.memory // 10**9}"))]
    return next((card for card in alike if _has_words(name, f"{card.memory // 10**9}gb")), next(iter(alike), None))


def _has_words(name: str, known: str) -> bool:
    return set(re.findall(r"[a-z0-9]+", name.lower())).issuperset(re.split("[ -]", known))


def peak_of(device: torch.device, product: int) -> tuple[float, str]:
    """The FLOP/s that shares are of, and what it is: the data sheet's, or those of a product of `product` rows."""
    known = peak_flops(describe(device)["name"])
    return (known, "the peak") if known is not None else (product_flops(device, product), "a product's rate")


def file_name(name: str) -> str:
    """`NVIDIA H100 80GB HBM3` -> `h100-80gb-hbm3`."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return words.removeprefix("nvidia-") or "card"


def describe(device: torch.device) -> dict[str, Any]:
    """Name, memory and abilities of a card, or of the CPU."""
    if device.type != "cuda":
        return {"name": "cpu", "memory_bytes": None, "capability": None, "multiprocessors": None}
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
    }


def driver(device: torch.device) -> dict[str, str]:
    """What the driver says of the card: its version, clocks, power and limits, by nvidia-smi, which is only asked;
    empty without it. `{"driver_version": "570.86", "clocks.sm": "1980 MHz", "power.limit": "700.00 W", ...}`."""
    if device.type != "cuda":
        return {}
    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", "")).removeprefix("GPU-")
    command = ["nvidia-smi", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader"]
    for one in (f"GPU-{uuid}", "0"):
        try:
            asked = [*command, f"--id={one}"]
            answer = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        return dict(zip(ASKED, (value.strip() for value in answer.split(",")), strict=False))
    return {}


def product_flops(device: torch.device, size: int, repeats: int = 20) -> float:
    """FLOP/s of a product of two bf16 matrices of size x size, the median after warming up."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    seconds = [timed(device, lambda: torch.mm(a, b, out=out)) for _ in range(2 * repeats)]
    return 2 * size**3 / statistics.median(seconds[repeats:])


def timed(device: torch.device, work: Callable[[], object]) -> float:
    """The seconds of `work`, with all that it leaves to the card."""
    synchronise(device)
    started = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - started


def synchronise(device: torch.device) -> None:
    """Returns when the card has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Returns memory of deleted tensors to the card."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def allocated_bytes(device: torch.device) -> int:
    """The bytes of all tensors on a card; on a CPU those of all tensors that Python knows of."""
    gc.collect()
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    storages = {}
    for found in gc.get_objects():
        is_tensor = type(found) in (torch.Tensor, torch.nn.Parameter)
        if is_tensor and found.device.type == "cpu" and found.layout == torch.strided:
            storage = found.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def forget_peak(device: torch.device) -> None:
    """`peak_bytes` begins again with what is allocated now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """The most bytes of tensors on the card since `forget_peak`; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
