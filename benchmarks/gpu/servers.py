"""Weights that leave the learner's memory: to servers on the same card by the folder, on another one by NCCL."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.card import release, timed
from benchmarks.gpu.checks import Check
from benchmarks.gpu.step import PACKAGES, prepare
from sleuth.engines.remote.weight_transfer import BroadcastWeights, NcclGroup, update_info_of
from sleuth.learn.master_weights import WeightSource
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
    "vLLM": 'launch = "vllm"',
    "SGLang": 'launch = "sglang"',
    BY_NCCL: """launch = "vllm", arguments = ["--weight-transfer-config", '{"backend": "nccl"}']""",
}
CARDS = {BY_NCCL: 2}
"""How many cards the rounds need, where it is not one."""


def servers(check: Check) -> None:
    """Weights sent to a process on another card; then the rounds with the servers that are there."""
    cards = torch.cuda.device_count() if check.on_card else 1
    if not check.on_card:
        check.skip("there is no card that could be sent weights")
    elif cards < CARDS[BY_NCCL]:
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
    source = WeightSource(model)
    weights = BroadcastWeights(source)
    command = [sys.executable, "-c", "from benchmarks.gpu.servers import take; take()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        unique_id = base64.b64encode(weights.group.unique_id).decode()
        with other.stdin as sent:
            sent.write(json.dumps({"unique_id": unique_id} | update_info_of(weights.outline)))
        weights.group.join(2)
        started = time.monotonic()
        weights.group.broadcast([weight for bucket in source.buckets() for weight in bucket.values()])
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


def digest_of(weight: torch.Tensor) -> str:
    """A hash of a weight's values."""
    return hashlib.sha256(weight.detach().reshape(-1).view(torch.uint8).cpu().numpy().data).hexdigest()


def rounds(check: Check, kind: str, changes: dict[str, Any]) -> None:
    """A run that starts a server, on the learner's card or another: it takes the weights at each of its steps, and
    evaluates at the end. On the learner's card it sleeps while the learner computes."""
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
    with RunFolder.open(file.with_suffix(""), recipe) as folder:
        seconds = timed(check.device, lambda: run_recipe(recipe, folder))
        rows = [row for row in folder.metrics.rows() if row["stage"] == "grpo"]
    check.found(f"rounds with {kind}", len(rows), at_least=ROUNDS)
    trained = [abs(row["sampler_learner_kl"]) for row in rows if row["loss"] is not None]
    check.found(f"{kind}: updates among them", len(trained), at_least=ROUNDS)
    check.found(f"{kind}: KL of sampler and learner", max(trained, default=0.0), "nats", at_most=SAMPLER_LEARNER_KL)
    check.found(f"{kind}: publishing", max(row["seconds_publish"] for row in rows), "s")
    by_folder = (folder.path / "log.txt").read_text().count("weights go through the folder")
    check.found(f"{kind}: servers that took weights from the folder", by_folder, at_most=0)
    check.found(f"{kind}: evaluated", (folder.path / "eval" / "trained.json").exists(), at_least=1)
    check.found(f"{kind}: all of it", seconds, "s")
