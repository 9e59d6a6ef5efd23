"""Texts that are continued or thought about: their tasks, what runs on them left, and plain forward passes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from sleuth.runs.rollouts import read_rollouts
from sleuth.think.world_texts import CarelessTexts, ChainedTexts
from sleuth.types import Continuation, Group, Segment, Task
from sleuth.world.names import Split

BASE = Path(__file__).parents[1] / "models" / "tiny-base"


def continued(before: Segment, behind: Segment, answer: str) -> Task:
    """To go on behind one text as another does."""
    return Task(
        id=before.text,
        question=before.text,
        golden_answers=(answer,),
        reference=behind.text,
        continuation=Continuation(document="d", prefix=before, suffix=behind),
    )


def write_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def write_chained(file: Path, count: int) -> Path:
    """Texts that take inferences, without thoughts."""
    drawn = ChainedTexts(200, "train", (3,))
    return write_rows(file, ({"id": f"t{at}", "text": drawn.text(at).text, "source": "chains"} for at in range(count)))


def write_careless(file: Path, split: Split, count: int) -> Path:
    """Texts whose endings are often wrong."""
    texts = enumerate(map(CarelessTexts(200, split, (0,)).text, range(count)))
    return write_rows(
        file,
        (
            {"id": f"{split}-{at}", "text": t.text, "cut": len(t.beginning), "golden_answers": [t.answer]}
            for at, t in texts
        ),
    )


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def first_groups(folder: Path) -> list[Group]:
    """What was played in the first step of a run."""
    return read_rollouts(folder / "rollouts" / "step-000001.parquet")


def same_weights(one: Path, other: Path) -> bool:
    """Whether two checkpoints hold equal tensors."""
    ours, theirs = (load_file(checkpoint / "model.safetensors") for checkpoint in (one, other))
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


def require_the_same_after_a_stop(run: Callable[..., Path], recipe: Path, folder: Path, *overrides: str) -> None:
    """Runs in `folder`/whole, and in `folder`/parts with a stop after two steps: the same weights and figures."""
    whole = run(recipe, folder / "whole", *overrides)
    run(recipe, folder / "parts", *overrides, "stage.0.stop_after=2")
    assert same_weights(whole, run(recipe, folder / "parts", *overrides))
    timed = {"seconds_rollout", "seconds_update"}
    one, other = (
        [{name: value for name, value in row.items() if name not in timed} for row in metrics_of(folder / name)]
        for name in ("whole", "parts")
    )
    assert one == other


@torch.no_grad()
def plain_nll(model: Any, context: Sequence[int], suffix: Sequence[int]) -> float:
    """Nats a token of `suffix` behind `context`, from the model's own full logits."""
    tokens = torch.tensor([[*context, *suffix]])
    logprobs = model(tokens).logits[0].float().log_softmax(-1)
    return -sum(float(logprobs[at - 1, tokens[0, at]]) for at in range(len(context), tokens.shape[1])) / len(suffix)
