"""What of a machine and its settings decides the last bits of results."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from sleuth.host.memory import text_of

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
