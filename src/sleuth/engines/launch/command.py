"""The command line and the environment that a server is started with."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

LaunchedKind = Literal["vllm", "sglang"]
HOST = "127.0.0.1"
GB = 10**9
CPU_CACHE = GB
"""Bytes of the KV cache of a server on a CPU, where the recipe names none."""

CPU_BATCHED_TOKENS = 4096
"""Tokens of a step of a vLLM on a CPU, which must not split a prompt: after a part of one, vLLM 0.32.0 sets back the
generator of a request that has a seed, which torch cannot do on a CPU, and the server ends (seen)."""

SGLANG_RESERVED = 6
"""Tokens of its context that SGLang fills with no prompt: it refuses one from `--context-length` minus 6 on."""

FOREIGN = ("PYTHONPATH", "PYTHONHOME", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")
FOREIGN += ("LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")
"""Variables of the trainer that would mislead a server: its modules, and its place among the trainer's ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a server is started with.

    `program` is the command without arguments. `card` is what CUDA_VISIBLE_DEVICES calls its card; None: the CPU.
    `memory` are its bytes of the card's `card_memory`, or of the KV cache on a CPU; None: its own default.
    `scaled`: its log-probabilities are asked for after temperature.

    `Launch(kind="vllm", program=("vllm",), model="models/tiny-base", port=30000, context=512, dtype="float32",
    requests=64, card="0", memory=40_000_000_000, card_memory=80_000_000_000, sleeps=True)`.
    """

    kind: LaunchedKind
    program: Sequence[str]
    model: str
    port: int
    context: int
    dtype: str
    requests: int
    card: str | None = None
    memory: int | None = None
    card_memory: int = 0
    sleeps: bool = False
    scaled: bool = False
    arguments: Sequence[str] = ()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def memory_share(self) -> str | None:
        """Its share of the card, rounded down to a hundredth; None: the server's default."""
        if self.memory is None or not self.card_memory:
            return None
        return f"{max(1, math.floor(100 * self.memory / self.card_memory)) / 100:.2f}"


def command_of(launch: Launch) -> list[str]:
    """The command line of a server. The recipe's own `arguments` come last, so that they override the others."""
    return [*launch.program, *COMMANDS[launch.kind](launch), *launch.arguments]


def _vllm_arguments(launch: Launch) -> list[str]:
    line = ["serve", launch.model, "--host", HOST, "--port", str(launch.port)]
    line += ["--max-model-len", str(launch.context), "--dtype", launch.dtype, "--max-num-seqs", str(launch.requests)]
    if launch.scaled:
        line += ["--logprobs-mode", "processed_logprobs"]
    if launch.card is None:
        at_once = str(max(CPU_BATCHED_TOKENS, launch.context))
        return [*line, "--enforce-eager", "--no-enable-chunked-prefill", "--max-num-batched-tokens", at_once]
    if launch.memory_share is not None:
        line += ["--gpu-memory-utilization", launch.memory_share]
    return [*line, "--enable-sleep-mode"] if launch.sleeps else line


def _sglang_arguments(launch: Launch) -> list[str]:
    line = ["-m", "sglang.launch_server", "--model-path", launch.model, "--host", HOST, "--port", str(launch.port)]
    context = launch.context + SGLANG_RESERVED
    line += ["--context-length", str(context), "--dtype", launch.dtype]
    line += ["--max-running-requests", str(launch.requests)]
    if launch.card is None:
        cache = str(launch.requests * context)  # by default most of the machine's free memory, which it touches
        return [*line, "--device", "cpu", "--attention-backend", "torch_native", "--max-total-tokens", cache]
    if launch.memory_share is not None:
        line += ["--mem-fraction-static", launch.memory_share]
    return [*line, "--enable-memory-saver"] if launch.sleeps else line


COMMANDS: dict[LaunchedKind, Callable[[Launch], list[str]]] = {"vllm": _vllm_arguments, "sglang": _sglang_arguments}
"""The arguments of each kind of server."""

SETTINGS: dict[LaunchedKind, Mapping[str, str]] = {
    "vllm": {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"},
    # `SGLANG_RESERVED` may exceed the positions of the model, and no request goes there
    "sglang": {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"},
}
"""The variables of each kind of server."""


def environment_of(launch: Launch, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of a server that a process with this `environment` starts: its card, the endpoints that training
    needs, and nothing sent to anybody. Settings that are there already win, except those of the card."""
    ours = {name: value for name, value in environment.items() if name not in FOREIGN}
    ours = {name: value for name, value in ours.items() if not name.startswith("TORCHELASTIC_")}
    settings = dict(SETTINGS[launch.kind])
    if Path(launch.model).is_dir():
        settings["HF_HUB_OFFLINE"] = "1"
    if launch.card is not None:
        return settings | ours | {"CUDA_VISIBLE_DEVICES": launch.card}
    if launch.kind == "vllm":
        settings |= {
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_CPU_KVCACHE_SPACE": str(max(1, math.ceil((launch.memory or CPU_CACHE) / GB))),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
    else:
        settings["SGLANG_USE_CPU_ENGINE"] = "1"  # else it takes layers of vLLM's, and of GPUs
    return settings | ours


def is_cpu_build(program: str) -> bool:
    """Whether the vLLM whose command this is was built for CPUs: the distribution `vllm-cpu` lies in its
    environment."""
    environment = Path(os.path.abspath(program)).parent.parent
    return any(environment.glob("lib/python3*/site-packages/vllm_cpu-*.dist-info"))
