"""The recipe that `sleuth init` writes, with a comment beside each number that one would change."""

from __future__ import annotations

import re
from pathlib import Path
from shlex import quote
from typing import Literal

from sleuth.recipe.toml_writer import emit_value

StarterTask = Literal["search", "refine", "think"]
TINY = {"search": "models/tiny-base", "refine": "models/tiny-reader", "think": "models/tiny-reader"}
"""The model that each task starts with: it ships, and a step takes seconds on a CPU."""

HEAD = """# {about}
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

[stage.env]
kind = "search"
dialect = "sleuth" # the tags; `sleuth check scorer` knows the published ones
prompt = {prompt} # {of_prompt}{role}
index = {index}
turn_tokens = {turn} # of a thought with a search, or with the answer

[[stage.reward]]
kind = "answer" # 1 for an exact answer, else 0
"""
REFINE = """
[stage.data]
questions = {train}
too_long = "skip" # leaves out rows that do not fit in `context`, and prints how many

[stage.env]
kind = "refine"
mode = {mode}
prompt = {prompt} # {of_prompt}{role}
turn_tokens = {turn}

[[stage.reward]]
kind = "citation"
content = "none" # with golden answers in the rows, leave this line out: then what is answered counts too
"""
THINK = """
[stage.data]
kind = "text"
texts = {train}
prefix_tokens = {prefix}
suffix_tokens = {suffix} # shorter texts than both are left out

[stage.env]
kind = "thought"
thought_tokens = 40

[[stage.reward]] # how much likelier the true continuation is after the thought than without it; needs no judge
kind = "gain"
clip = 4.0
floor = 0.0
"""
LOSS = """
[stage.loss]
setting = "dapo" # a mean over tokens, and a higher upper bound: arXiv:2503.14476
"""
ROLE = """
prompt_role = "user" # in the model's chat template
template_flags = { enable_thinking = false } # thoughts are in the dialect's own tags"""
ABOUT = {
    "search": "Trains a model to search a corpus for the answers to questions.",
    "refine": "Trains a model to rewrite tool outputs as answers with citations.",
    "think": "Trains a model to think before it continues a text.",
}


def starter_recipe(task: StarterTask, folder: Path, model: str | None) -> str:
    """The text of a recipe that reads `train.jsonl`, `test.jsonl` and, to search, `index` in `folder`. Without a model
    it starts from the tiny one of the task."""
    tiny = model is None or "tiny-" in Path(model).name
    paths = {name: emit_value((folder / name).as_posix()) for name in ("train.jsonl", "test.jsonl", "index")}
    numbers: dict[str, object] = {
        "about": ABOUT[task],
        "file": quote((folder / "recipe.toml").as_posix()),
        "name": emit_value(re.sub("[^A-Za-z0-9._-]+", "-", folder.resolve().name).strip("-._") or "mine"),
        "model": emit_value(model or TINY[task]),
        "of_model": "ships with Sleuth and shows that all works; --model Qwen/Qwen3-0.6B is a real one"
        if tiny
        else "a folder or a hub id",
        "precision": "" if tiny else '\ndtype = "bfloat16" # for computation; the optimiser keeps fp32 master weights',
        "train": paths["train.jsonl"],
        "index": paths["index"],
        "steps": 100 if tiny else 300,
        "prompts": 8 if tiny else 32,
        "learning_rate": "3e-4" if tiny else "1e-6",
        "warmup": 5 if tiny else 20,
        "micro_batch": 2048 if tiny else 16384,
        "save_every": 50,
    }
    own = _search(tiny) if task == "search" else _refine(tiny) if task == "refine" else _think(tiny)
    parts = {"search": SEARCH, "refine": REFINE, "think": THINK}
    text = HEAD + GRPO + parts[task] + ("" if tiny or task != "search" else LOSS)
    if task == "think":
        return text.format(**numbers, **own)
    whys = {
        "base": "before training: what the gain is measured against",
        "trained": "the same questions, never trained on",
    }
    before, after = (EVALUATION.format(name=name, why=why, test=paths["test.jsonl"]) for name, why in whys.items())
    return (HEAD + "{before}" + text.removeprefix(HEAD) + "{after}").format(
        **numbers, **own, before=before, after=after
    )


def _search(tiny: bool) -> dict[str, object]:
    if tiny:
        return {
            "context": 768,
            "turn": 32,
            "prompt": '"plain"',
            "of_prompt": "the question alone, which it knows",
            "role": "",
        }
    of_prompt = "`sleuth prompts` lists others; a path to a text of yours works too"
    return {"context": 4096, "turn": 384, "prompt": '"search_rules"', "of_prompt": of_prompt, "role": ROLE}


def _refine(tiny: bool) -> dict[str, object]:
    if tiny:
        of_prompt = "question, reasoning and tool output, as it was trained"
        return {
            "context": 1024,
            "turn": 96,
            "mode": '"thinking"',
            "prompt": '"bare"',
            "of_prompt": of_prompt,
            "role": "",
        }
    of_prompt = "`sleuth prompts` lists others; a path to a text of yours works too"
    return {
        "context": 7168,
        "turn": 1024,
        "mode": '"answer_only"',
        "prompt": '"refine"',
        "of_prompt": of_prompt,
        "role": ROLE,
    }


def _think(tiny: bool) -> dict[str, object]:
    return {"context": 256, "prefix": 64, "suffix": 16} if tiny else {"context": 1024, "prefix": 384, "suffix": 64}
