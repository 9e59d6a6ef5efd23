"""Weights that leave the learner's memory: to processes and servers on the same card, and on another one."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from benchmarks.gpu.card import release, timed
from benchmarks.gpu.checks import Check
from benchmarks.gpu.step import PACKAGES, prepare
from sleuth.engines.remote.weight_transfer import (
    CARD_ARGUMENT,
    BroadcastWeights,
    NcclGroup,
    shared_weights,
    update_info_of,
)
from sleuth.types import Episode
from sleuth.world.facts import make_world

ROUNDS = 3
SAMPLER_LEARNER_KL = 1e-3
RECIPE = """
name = "rounds"
model = "{model}"
dtype = "{dtype}"
device = "{device}"

[[stage]]
kind = "grpo"
steps = {rounds}
prompts_per_step = 4
samples_per_prompt = 8
learning_rate = 1e-5
context = {context}
save_every = {rounds}
probe_prompts = 0
data = {{ questions = "{world}/qa_train.jsonl" }}
env = {{ kind = "search", dialect = "sleuth", prompt = "plain", index = "{world}/index", turn_tokens = 32 }}
reward = [{{ kind = "python", function = "benchmarks.gpu.servers:hashed" }}]
engine = {{ {engine} }}

[[stage]]
kind = "evaluate"
name = "trained"
data = {{ questions = "{world}/qa_test.jsonl", limit = 16 }}
"""


def hashed(episode: Episode) -> float:
    """A number between 0 and 1 that differs between siblings: random weights answer nothing right."""
    written = [token for segment in episode.whole.segments for token in segment.tokens]
    return hashlib.sha256(repr(written).encode()).digest()[0] / 255


BY_NCCL = "vLLM on another card"
ENGINES = {
    "vLLM": """launch = "vllm", arguments = ["--weight-transfer-config", '{"backend": "ipc"}']""",
    "SGLang": 'launch = "sglang"',
    BY_NCCL: """launch = "vllm", arguments = ["--weight-transfer-config", '{"backend": "nccl"}']""",
}
CARDS = {BY_NCCL: 2}
"""How many cards the rounds need, where it is not one."""


def servers(check: Check) -> None:
    """The handles of a model, read by another process; its weights, sent to one on another card; then the rounds with
    the servers that are there."""
    cards = torch.cuda.device_count() if check.on_card else 1
    if not check.on_card:
        check.skip("there is no card whose memory could be shared, or that could be sent weights")
    else:
        for kind in READERS:
            handles(check, kind)
        if cards < CARDS[BY_NCCL]:
            check.skip(f"weights sent to another card by NCCL: needs two cards, and there is {cards}")
        else:
            broadcast(check)
    installed = {"vLLM": shutil.which("vllm"), "SGLang": find_spec("sglang"), BY_NCCL: shutil.which("vllm")}
    for kind, found in installed.items():
        if found is None or cards < CARDS.get(kind, 1):
            missing = f"there is no {kind}" if found is None else f"needs {CARDS[kind]} cards, and there is {cards}"
            check.skip(f"{ROUNDS} rounds of publish, play, update with {kind}: {missing}")
            installed[kind] = None
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if any(installed.values()) and missing:
        check.skip(f"rounds of publish, play, update: no {' and no '.join(missing)}")
    elif any(installed.values()):
        changes = prepare(check, make_world(0, check.scale.people))
        for kind in filter(installed.get, ENGINES):
            rounds(check, kind, changes)


def broadcast(check: Check) -> None:
    """Another process, on a second card, takes the weights as vLLM does, and hashes them."""
    model = check.scale.model(check.device)
    wanted = {name: digest_of(weight) for name, weight in model.state_dict().items()}
    weights = BroadcastWeights(model)
    command = [sys.executable, "-c", "from benchmarks.gpu.servers import take; take()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        unique_id = base64.b64encode(weights.group.unique_id).decode()
        with other.stdin as sent:
            sent.write(json.dumps({"unique_id": unique_id} | update_info_of(weights.weights)))
        weights.group.join(2)
        started = time.monotonic()
        weights.group.broadcast(list(weights.weights.values()))
        check.found("sent to another card", time.monotonic() - started, "s")
        digests = json.loads(other.stdout.read().splitlines()[-1])
    weights.group.abort()
    differ = [name for name, digest in wanted.items() if digests.get(name) != digest]
    check.found("weights sent to another card", len(wanted) - len(differ), at_least=len(wanted))


def take() -> None:
    """Prints the digests of the weights that it is sent; the other process of `broadcast`."""
    sent = json.load(sys.stdin)
    device = torch.device("cuda:1")
    group = NcclGroup(device, base64.b64decode(sent["unique_id"]))
    group.join(2, 1)
    weights = [
        torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        for dtype, shape in zip(sent["dtype_names"], sent["shapes"], strict=True)
    ]
    group.broadcast(weights)
    group.abort()
    print(json.dumps(dict(zip(sent["names"], map(digest_of, weights), strict=True))))


def handles(check: Check, kind: str) -> None:
    """Another process rebuilds every weight from its handle, as this kind of server does, and hashes it."""
    model = check.scale.model(check.device)
    wanted = {name: digest_of(weight) for name, weight in model.state_dict().items()}
    command = [sys.executable, "-c", f"from benchmarks.gpu.servers import read; read({kind!r})"]
    with shared_weights(model) as shared:
        sent = json.dumps(shared.update_info() if kind == "vLLM" else shared.serialized_named_tensors())
        said = subprocess.run(command, input=sent, capture_output=True, text=True, timeout=120, check=False)
        if said.returncode:
            raise RuntimeError(said.stderr[-400:])
    read_there = json.loads(said.stdout.splitlines()[-1])
    differ = [name for name, digest in wanted.items() if read_there["digests"].get(name) != digest]
    check.found(f"weights read as by {kind}", len(wanted) - len(differ), at_least=len(wanted))
    check.found(f"copied as by {kind}", read_there["seconds"], "s")


def read(kind: str) -> None:
    """Prints the digests of the weights whose handles are on standard input; the other process of `handles`."""
    sent = json.load(sys.stdin)
    started = time.monotonic()
    copies = {name: weight.clone() for name, weight in READERS[kind](sent).items()}
    torch.cuda.synchronize()
    seconds = time.monotonic() - started
    print(json.dumps({"seconds": seconds, "digests": {name: digest_of(copy) for name, copy in copies.items()}}))


def _as_vllm(info: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The weights in the memory of the other process, from the arguments that vLLM 0.32.0 takes."""
    card = str(torch.cuda.get_device_properties(0).uuid)
    pickled = pickle.loads(base64.b64decode(info["ipc_handles_pickled"]))  # of the process that started this one
    torch.cuda.init()
    return {
        name: rebuild_cuda_tensor(*handle[card][:6], 0, *handle[card][7:])
        for name, handle in zip(info["names"], pickled, strict=True)
    }


class _AsSglang(pickle.Unpickler):
    """Rebuilds tensors on the card that has the UUID, as SGLang 0.5.23 does."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) == ("torch.multiprocessing.reductions", "rebuild_cuda_tensor"):
            return self._rebuilt
        if module_name in ("torch", "torch.storage"):
            return super().find_class(module_name, global_name)
        raise pickle.UnpicklingError(f"{module_name}.{global_name}")

    def _rebuilt(self, *arguments: Any) -> torch.Tensor:
        card = str(torch.cuda.get_device_properties(0).uuid)
        if arguments[CARD_ARGUMENT] != card:
            raise pickle.UnpicklingError(f"the tensor is on {arguments[CARD_ARGUMENT]}, not on {card}")
        return rebuild_cuda_tensor(*arguments[:CARD_ARGUMENT], 0, *arguments[CARD_ARGUMENT + 1 :])


def _as_sglang(payloads: list[str]) -> dict[str, torch.Tensor]:
    torch.cuda.init()
    return dict(_AsSglang(io.BytesIO(base64.b64decode(payloads[0]))).load())


READERS: dict[str, Callable[[Any], dict[str, torch.Tensor]]] = {"vLLM": _as_vllm, "SGLang": _as_sglang}
"""How a kind of server reads weights on a card."""


def digest_of(weight: torch.Tensor) -> str:
    """A hash of a weight's values."""
    return hashlib.sha256(weight.detach().reshape(-1).view(torch.uint8).cpu().numpy().data).hexdigest()


def rounds(check: Check, kind: str, changes: dict[str, Any]) -> None:
    """A run that starts a server, on the learner's card or another: it takes the weights at each of its steps from
    memory, and evaluates at the end. On the learner's card it sleeps while the learner computes."""
    from sleuth.cli.pipeline import run_recipe
    from sleuth.recipe import load_recipe
    from sleuth.runs.run_folder import RunFolder

    release(check.device)
    file = check.folder / f"rounds_{kind.replace(' ', '_')}.toml"
    values = {
        "model": changes["model"],
        "world": Path(changes["grpo.env.index"]).parent,
        "dtype": "bfloat16" if check.on_card else "float32",
        "device": check.device.type,
        "rounds": ROUNDS,
        "engine": ENGINES[kind],
        "context": min(1024, check.scale.context),
    }
    file.write_text(RECIPE.format(**values))
    recipe = load_recipe(file)
    with (
        patch.dict(os.environ, VLLM_ALLOW_INSECURE_SERIALIZATION="1"),
        RunFolder.open(file.with_suffix(""), recipe) as folder,
    ):
        seconds = timed(check.device, lambda: run_recipe(recipe, folder))
        rows = [row for row in folder.metrics.rows() if row["stage"] == "grpo"]
    check.found(f"rounds with {kind}", len(rows), at_least=ROUNDS)
    trained = [abs(row["sampler_learner_kl"]) for row in rows if row["loss"] is not None]
    check.found(f"{kind}: updates among them", len(trained), at_least=ROUNDS)
    check.found(f"{kind}: KL of sampler and learner", max(trained, default=0.0), "nats", at_most=SAMPLER_LEARNER_KL)
    check.found(f"{kind}: publishing", max(row["seconds_publish"] for row in rows), "s")
    by_folder = (folder.path / "log.txt").read_text().count("weights go through the folder")
    check.found(f"{kind}: servers that took weights from the folder", by_folder, at_most=0 if check.on_card else None)
    check.found(f"{kind}: evaluated", (folder.path / "eval" / "trained.json").exists(), at_least=1)
    check.found(f"{kind}: all of it", seconds, "s")
