from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

USE = """
import ctypes, resource, sys
from sleuth.kernels import device
print(all([getattr(device, name)() for name in sys.argv[1:]]))
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    blocks = [libc.malloc(10_000_000) for _ in range(10)]
    for block in blocks:
        ctypes.memset(block, 1, 10_000_000)
    for block in blocks:
        libc.free(ctypes.c_void_p(block))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 10 * 10_000_000 // 4_096
QUIET = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")


def use(*wishes: str, **told: str) -> tuple[str, int]:
    """Whether malloc was told, and the pages that twenty uses of 100 MB, one after the other, took from the system."""
    command = [sys.executable, "-c", USE, *wishes]
    done = subprocess.run(command, env=QUIET | told, capture_output=True, text=True, check=True, timeout=120)
    kept, pages = done.stdout.split()
    return kept, int(pages)


def test_freed_memory_is_reused():
    kept, pages = use("keep_freed_memory")
    assert kept == "True"
    assert pages < 2 * PAGES


@pytest.mark.parametrize(
    "wishes",
    [
        ["return_freed_memory"],
        ["keep_freed_memory", "return_freed_memory"],
        ["return_freed_memory", "keep_freed_memory"],
    ],
)
def test_one_call_to_return_memory_is_enough(wishes):
    """A policy that saves memory, beside an engine that would keep it."""
    told, pages = use(*wishes)
    assert told == "True"
    assert pages > 15 * PAGES
