"""Peak memory of each phase of a small GRPO stage on a CPU, measured in this process: run it in a fresh one.

`python allocations.py SETTING.json FOLDER` prints bytes by phase beyond those of the process with its libraries. The
setting has a model's `config`, `dtype`, `context`, `budget` (tokens of a micro-batch), `sequences`,
`sampled` tokens and `trained` tokens of each,
`checkpointed`, and whether there is a `reference`.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from sleuth.engines.local.engine import LocalEngine
from sleuth.learn.batch import Batch, Row, collate
from sleuth.learn.logprobs import token_logprobs
from sleuth.learn.losses import PolicyLoss
from sleuth.learn.models import load_model
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy, frozen_copy
from sleuth.learn.prefix_tree import pack
from sleuth.runs.checkpoints import save_checkpoint
from sleuth.types import Sampling

TOKENIZER = Path(__file__).parents[2] / "models" / "tiny-base"
TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
TINY |= {"intermediate_size": 128, "vocab_size": 1000, "model_type": "qwen3", "tie_word_embeddings": True}

Result = TypeVar("Result")


def write_model(folder: Path, config: dict[str, Any], dtype: str) -> None:
    """A model with random weights, drawn in fp32, which is faster than in bf16."""
    made = AutoConfig.for_model(**config, max_position_embeddings=32_768)
    AutoModelForCausalLM.from_config(made).to(getattr(torch, dtype)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(TOKENIZER).save_pretrained(folder)


def status(key: str) -> int:
    """Bytes of a line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def trim() -> None:
    """Returns freed memory to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


class Measured:
    """Peaks by phase, in bytes beyond `base`."""

    def __init__(self) -> None:
        self.base = 0
        self.peaks: dict[str, int] = {}

    def phase(self, name: str, work: Callable[[], Result]) -> Result:
        trim()
        Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark to what is resident now
        result = work()
        self.peaks[name] = status("VmHWM") - self.base
        return result


def train(folder: Path, setting: dict[str, Any], measured: Measured, place: Path) -> None:
    """The phases of a step. The step before it, on a few tokens, has made the optimiser's moments."""
    dtype, context, sequences = setting["dtype"], setting["context"], setting["sequences"]
    model, tokenizer = measured.phase("load", lambda: load(folder, dtype))
    reference = frozen_copy(model) if setting["reference"] else None
    optimisation = Optimisation(steps=10, learning_rate=1e-4)
    policy = Policy(model, optimisation, reference, gradient_checkpointing=setting["checkpointed"])
    engine = LocalEngine(model, tokenizer, slots=sequences, context=context)
    loss = PolicyLoss(beta=0.001 if setting["reference"] else 0.0)
    policy.update(random_batch(setting | {"context": 8}), loss, budget=8)
    engine.publish(1)
    measured.phase("rollout", lambda: generate(engine, setting))
    del engine  # and its cache, which a run gives back before an update
    short = setting | {"context": 64, "sequences": 1, "sampled": 2}
    engine = LocalEngine(model, tokenizer, slots=1, context=64)
    generate(engine, short)
    batch = random_batch(setting)
    if policy.reference is not None:
        measured.phase("reference pass", lambda: reference_pass(policy, batch, setting["budget"]))
    measured.phase("update", lambda: policy.update(batch, loss, budget=setting["budget"]))
    engine.publish(2)
    state = {"policy": policy.state_dict()}
    measured.phase("checkpoint", lambda: save_checkpoint(place, model, tokenizer, card="", state=state))


def load(folder: Path, dtype: str) -> tuple[Any, Any]:
    """A model and its tokenizer. Every weight is read: until then it is mapped from its file, and takes no memory."""
    model, tokenizer = load_model(str(folder), dtype=dtype, device="cpu")
    for weight in model.parameters():
        weight.detach().view(torch.int16).max()
    return model, tokenizer


def evaluate(folder: Path, setting: dict[str, Any], measured: Measured) -> None:
    """The phase of an evaluation."""
    trim()
    model, tokenizer = load_model(str(folder), dtype=setting["dtype"], device="cpu")
    engine = LocalEngine(model, tokenizer, slots=setting["sequences"], context=setting["context"])
    measured.phase("evaluation", lambda: generate(engine, setting))


def generate(engine: LocalEngine, setting: dict[str, Any]) -> None:
    """Every sequence as long as the context; no prompt is shared."""
    sampled, read = setting["sampled"], setting["context"] - setting["sampled"]

    async def all_of_them() -> None:
        sampling = [Sampling(max_tokens=sampled, key=(number,)) for number in range(setting["sequences"])]
        await asyncio.gather(*(engine.complete(random_tokens(read, key.key[0]), key) for key in sampling))

    asyncio.run(all_of_them())


def random_tokens(count: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(20, 500) for _ in range(count)]


def random_batch(setting: dict[str, Any]) -> Batch:
    count, trained = setting["context"], min(setting["context"] - 1, setting["trained"])
    return collate(
        [
            Row(
                tokens=tuple(random_tokens(count, number)),
                trained=(False,) * (count - trained) + (True,) * trained,
                advantage=1.0 if number % 2 else -1.0,
            )
            for number in range(setting["sequences"])
        ]
    )


@torch.no_grad()
def reference_pass(policy: Policy, batch: Batch, budget: int) -> None:
    for part in pack(batch, budget):
        token_logprobs(policy.reference.module, part)


def main() -> None:
    setting, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    write_model(folder / "tiny", TINY, setting["dtype"])
    write_model(folder / "model", setting["config"], setting["dtype"])
    warm = Measured()
    small = setting | {"context": 64, "budget": 64, "sequences": 2, "sampled": 4}
    train(folder / "tiny", small, warm, folder / "tiny-checkpoint")
    evaluate(folder / "tiny", small, warm)
    measured = Measured()
    trim()
    measured.base = status("VmRSS")
    train(folder / "model", setting, measured, folder / "checkpoint")
    evaluate(folder / "model", setting, measured)
    print(json.dumps(measured.peaks))


if __name__ == "__main__":
    main()
