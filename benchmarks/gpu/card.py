"""The card of a check: its name, its peak, and its memory. A CPU stands in where the check itself is tested."""

from __future__ import annotations

import gc
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from sleuth.host.hardware import CARDS

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

FAST = 700e12
"""Bars of speed hold for cards with this peak or more: data-centre cards of 2022 and later."""


def peak_flops(name: str) -> float | None:
    """The dense bf16 FLOP/s of a card by its name; None if it is not listed. `peak_flops("NVIDIA H100 80GB HBM3")` is
    989e12."""
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    planned = {card.name.removesuffix(f"-{card.memory // 10**9}"): card.flops for card in CARDS.values()}
    peaks = {known: teraflops * 1e12 for known, teraflops in PEAKS.items()} | planned
    return next((peak for known, peak in peaks.items() if words.issuperset(re.split("[ -]", known))), None)


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
