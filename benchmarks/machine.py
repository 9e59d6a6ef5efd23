"""The machine and the libraries of a measurement."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import sleuth

LIBRARIES = (
    "torch", "transformers", "triton", "trl", "peft", "prefix-grouper", "accelerate", "tokenizers", "tantivy", "numpy",
)  # fmt: skip


def versions() -> dict[str, str]:
    """The versions of relevant libraries that are installed."""
    return {"python": platform.python_version(), "sleuth": sleuth.__version__} | {
        name: found for name in LIBRARIES if (found := _version(name))
    }


def machine() -> dict[str, str | int]:
    """Processor, cores, threads that torch uses, memory, and system."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
