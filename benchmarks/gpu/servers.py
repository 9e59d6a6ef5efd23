"""Weights that leave the learner's memory: to another process on the same card, and to a vLLM that shares it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from benchmarks.gpu.card import release, timed
from benchmarks.gpu.checks import Check
from benchmarks.gpu.step import prepare
from sleuth.engines.remote.shared_memory import shared_weights
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
engine = {{ launch = "vllm", arguments = ["--weight-transfer-config", '{{"backend": "ipc"}}'] }}

[[stage]]
kind = "evaluate"
name = "trained"
data = {{ questions = "{world}/qa_test.jsonl", limit = 16 }}
"""


def hashed(episode: Episode) -> float:
    """A number between 0 and 1 that differs between siblings: random weights answer nothing right."""
    written = [token for segment in episode.whole.segments for token in segment.tokens]
    return hashlib.sha256(repr(written).encode()).digest()[0] / 255


def servers(check: Check) -> None:
    """The handles of a model, read by another process; then the rounds with vLLM, if it is there."""
    handles(check)
    if shutil.which("vllm") is None:
        check.skip(f"{ROUNDS} rounds of publish, play, sleep, update, wake: there is no vllm on the PATH")
    else:
        rounds(check)


def handles(check: Check) -> None:
    """Another process rebuilds every weight from its handle, as vLLM does, and hashes it."""
    model = check.scale.model(check.device)
    wanted = {name: digest_of(weight) for name, weight in model.state_dict().items()}
    command, found = [sys.executable, "-c", "from benchmarks.gpu.servers import read; read()"], []
    with shared_weights(model) as info:
        said = subprocess.run(command, input=json.dumps(info), capture_output=True, text=True, timeout=120, check=False)
        if said.returncode:
            raise RuntimeError(said.stderr[-400:])
        found.append(json.loads(said.stdout.splitlines()[-1]))
    read_there = found[0]
    differ = [name for name, digest in wanted.items() if read_there["digests"].get(name) != digest]
    check.found("weights read by another process", len(wanted) - len(differ), at_least=len(wanted))
    check.found("copied there", read_there["seconds"], "s")


def read() -> None:
    """Prints the digests of the weights that the handles on standard input name; the other process of `handles`."""
    info = json.load(sys.stdin)
    started = time.monotonic()
    if torch.cuda.is_available() and info["ipc_handles_pickled"]:
        weights = _from_card(info)
    else:
        from sleuth.serve.emulator.weight_transfer import received_weights

        weights = received_weights(info)
    copies = {name: weight.clone() for name, weight in weights.items()}
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds = time.monotonic() - started
    print(json.dumps({"seconds": seconds, "digests": {name: digest_of(copy) for name, copy in copies.items()}}))


def _from_card(info: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The weights in the memory of the other process, from the arguments that vLLM 0.32.0 takes."""
    card = str(torch.cuda.get_device_properties(0).uuid)
    pickled = pickle.loads(base64.b64decode(info["ipc_handles_pickled"]))  # of the process that started this one
    torch.cuda.init()
    return {
        name: rebuild_cuda_tensor(*handle[card][:6], 0, *handle[card][7:])
        for name, handle in zip(info["names"], pickled, strict=True)
    }


def digest_of(weight: torch.Tensor) -> str:
    """A hash of a weight's values."""
    return hashlib.sha256(weight.detach().reshape(-1).view(torch.uint8).cpu().numpy().data).hexdigest()


def rounds(check: Check) -> None:
    """A run that starts a vLLM on the card: it sleeps while the learner computes, takes the weights at each of its
    steps from memory, and evaluates at the end."""
    from sleuth.pipeline import run_recipe
    from sleuth.recipe import load_recipe
    from sleuth.runs.run_folder import RunFolder

    changes = prepare(check, make_world(0, check.scale.people))
    release(check.device)
    file = check.folder / "rounds.toml"
    values = {
        "model": changes["model"],
        "world": Path(changes["grpo.env.index"]).parent,
        "dtype": "bfloat16" if check.on_card else "float32",
        "device": check.device.type,
        "rounds": ROUNDS,
        "context": min(1024, check.scale.context),
    }
    file.write_text(RECIPE.format(**values))
    recipe = load_recipe(file)
    with (
        patch.dict(os.environ, VLLM_ALLOW_INSECURE_SERIALIZATION="1"),
        RunFolder.open(check.folder / "rounds", recipe) as folder,
    ):
        seconds = timed(check.device, lambda: run_recipe(recipe, folder))
        rows = [row for row in folder.metrics.rows() if row["stage"] == "grpo"]
    check.found("rounds with vLLM", len(rows), at_least=ROUNDS)
    trained = [abs(row["sampler_learner_kl"]) for row in rows if row["loss"] is not None]
    check.found("updates among them", len(trained), at_least=ROUNDS)
    check.found("KL of sampler and learner", max(trained, default=0.0), "nats", at_most=SAMPLER_LEARNER_KL)
    check.found("publishing", max(row["seconds_publish"] for row in rows), "s")
    by_folder = (folder.path / "log.txt").read_text().count("weights go through the folder")
    check.found("servers that took weights from the folder", by_folder, at_most=0 if check.on_card else None)
    check.found("evaluated", (folder.path / "eval" / "trained.json").exists(), at_least=1)
    check.found("all of it", seconds, "s")
