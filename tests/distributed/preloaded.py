"""Imported once, by the process that ranks are forked from: what each of them would load for itself."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

import numpy as np

from sleuth.learn.compiled import greatest

HEAVY = """
sleuth.distributed.shards sleuth.pipeline transformers.models.qwen3.modeling_qwen3
transformers.models.llama.modeling_llama transformers.models.qwen2.modeling_qwen2 peft pandas
"""
"""Pandas is for pyarrow, which imports it where it is installed, when it first makes a table."""

for name in HEAVY.split():
    with suppress(ImportError):
        import_module(name)
greatest(np.zeros(1, dtype=np.float32))  # a loop that starts no threads: numba prepares what all its loops need
