"""Imported once, by the process that ranks and `sleuth` are forked from: what each of them would load for itself."""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module

from sleuth.host.threads import prepare_waiting

HEAVY = """
sleuth.learn.shards sleuth.cli.pipeline transformers.models.qwen3.modeling_qwen3
transformers.models.llama.modeling_llama transformers.models.qwen2.modeling_qwen2 peft pandas
"""
"""Pandas is for pyarrow, which imports it where it is installed, when it first makes a table."""

prepare_waiting()
gc.disable()  # as `sleuth` imports them
for name in HEAVY.split():
    with suppress(ImportError):
        import_module(name)

import numpy as np  # noqa: E402

from sleuth.kernels.compiled import greatest  # noqa: E402

greatest(np.zeros(1, dtype=np.float32))  # a loop that starts no threads: numba prepares what all its loops need
gc.freeze()  # what is never freed needs no copy in a fork
gc.enable()
