"""The recipe that `sleuth init` writes, with a comment beside each number that one would change."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from sleuth.recipe.draft import emit_value

READER = "models/tiny-real"
"""A model that ships and searches real text; a step takes seconds on a CPU."""

HEAD = """# Trains a model to search a corpus for the answers to questions.
# `sleuth train {file}` runs it; `--set grpo.stop_after=5` ends it after five steps, to try it.

name = {name}
model = {model} # {of_model}
seed = 0{precision}
"""
EVALUATION = """
[[stage]] # {why}
kind = "evaluate"
name = "{name}"
data = {{ questions = {test} }}
"""
GRPO = """
[[stage]]
kind = "grpo"
steps = {steps}
prompts_per_step = {prompts} # the only two batch sizes: memory is bounded by tokens_per_micro_batch
samples_per_prompt = 8 # a question whose eight answers score alike teaches nothing
learning_rate = {learning_rate}
warmup_steps = {warmup}
context = {context} # tokens of a whole episode
tokens_per_micro_batch = {micro_batch}
save_every = {save_every}
"""
SEARCH = """
[stage.data]
questions = {train}
too_long = "skip" # leaves out questions that do not fit in `context`, and prints how many

[stage.env]{of_env}
kind = "search"
{env}
index = {index}

[[stage.reward]]
kind = "answer" # 1 for {of_reward}, else 0{scorer}{weight}
{rewards}"""
REWARD = """
[[stage.reward]]
kind = "{kind}"
weight = {weight}
"""
PLAIN_REWARDS = ("token_f1", "cited_answer", "format")
"""Those that need no other key, and that a checkpoint may have been paid besides answers."""
LOSS = """
[stage.loss]
setting = "dapo" # a mean over tokens, and a higher upper bound: arXiv:2503.14476
"""
OF_SEARCH = {
    "dialect": "the tags; `sleuth check scorer` knows the published ones",
    "turn_tokens": "of a thought with a search, or with the answer",
}
OF_CHAT = {
    "prompt": "`sleuth prompts` lists others; a path to a text of yours works too",
    "prompt_role": "in the model's chat template",
    "template_flags": "thoughts are in the dialect's own tags",
}
"""Comments on the keys of an environment that is not a checkpoint's own."""
CHAT = {"prompt_role": "user", "template_flags": {"enable_thinking": False}}
Start = tuple[int, dict[str, Any], dict[str, str]]
"""The context, the keys of the environment, and comments on them."""
SMALL: Start = (
    768,
    {"dialect": "sleuth", "prompt": "plain", "turn_tokens": 32},
    OF_SEARCH | {"prompt": "the question alone, as the tiny models were trained"},
)
LARGE: Start = (
    4096,
    {"dialect": "sleuth", "prompt": "search_rules", **CHAT, "turn_tokens": 384},
    OF_SEARCH | OF_CHAT,
)
LONG = 2048
"""Positions. A model with fewer has no room for rules and long turns."""
SMALL_WEIGHTS = 64 * 2**20
"""Bytes. A model with fewer is trained as the tiny ones are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taught:
    """What a model's files say of how to train it further: the bytes of its weights, the `positions` that it has, its
    chat `template` (None where it is not known), and, of a checkpoint that searches, the keys of its environment, its
    `context` and its scorer of answers."""

    weights: int | None = None
    positions: int | None = None
    template: str | None = None
    env: Mapping[str, Any] | None = None
    context: int | None = None
    scorer: str | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    """The weights of what it was paid for: `{"answer": 0.8, "cited_answer": 0.2}`."""


def starter_recipe(folder: Path, model: str, taught: Taught | None = None) -> str:
    """The text of a recipe that reads `train.jsonl`, `test.jsonl` and `index` in `folder`. A checkpoint is asked as it
    was `taught`."""
    taught = taught or Taught()
    ships = "tiny-" in Path(model).name
    tiny = ships or (taught.weights is not None and taught.weights < SMALL_WEIGHTS)
    paths = {name: emit_value((folder / name).as_posix()) for name in ("train.jsonl", "test.jsonl", "index")}
    context, keys, comments = SMALL if ships or (taught.positions or LONG) < LONG else LARGE
    context = min(taught.context or context, taught.positions or context)
    env = keys | {"turn_tokens": min(keys["turn_tokens"], context // 4)}
    if taught.template is not None and "enable_thinking" not in taught.template:
        env.pop("template_flags", None)
    if taught.template == "":
        env.pop("prompt_role", None)
    numbers: dict[str, object] = {
        "file": quote((folder / "recipe.toml").as_posix()),
        "name": emit_value(re.sub("[^A-Za-z0-9._-]+", "-", folder.resolve().name).strip("-._") or "mine"),
        "model": emit_value(model),
        "of_model": "ships with Sleuth, for a CPU; --model Qwen/Qwen3-0.6B is a real one"
        if ships
        else "a folder or a hub id",
        "precision": "" if tiny else '\ndtype = "bfloat16" # for computation; the optimiser keeps fp32 master weights',
        "train": paths["train.jsonl"],
        "index": paths["index"],
        "steps": (60 if taught.env else 100) if tiny else 300,
        "prompts": 8 if tiny else 32,
        "learning_rate": ("1e-4" if taught.env else "3e-4") if tiny else "1e-6",
        "warmup": 5 if tiny else 20,
        "context": context,
        "micro_batch": 2048 if tiny else 16384,
        "save_every": 50,
        "of_env": ""
        if taught.env is None
        else " # the model's own protocol, of its protocol.json: it was taught no other",
        "env": _lines(env, comments) if taught.env is None else _lines(taught.env, {}),
        "of_reward": "an answer that the scorer of its training accepts" if taught.scorer else "an exact answer",
        "scorer": f"\nscorer = {emit_value(taught.scorer)}" if taught.scorer else "",
        "weight": f"\nweight = {taught.rewards['answer']}" if taught.rewards else "",
        "rewards": "".join(
            REWARD.format(kind=kind, weight=weight) for kind, weight in taught.rewards.items() if kind != "answer"
        ),
    }
    whys = {
        "base": "before training: what the gain is measured against",
        "trained": "the same questions, never trained on",
    }
    before, after = (EVALUATION.format(name=name, why=why, test=paths["test.jsonl"]) for name, why in whys.items())
    text = HEAD + "{before}" + GRPO + SEARCH + ("" if tiny else LOSS) + "{after}"
    return text.format(**numbers, before=before, after=after)


def _lines(env: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    said = {key: f" # {comments[key]}" if key in comments else "" for key in env}
    return "\n".join(f"{key} = {emit_value(value)}{said[key]}" for key, value in env.items())
