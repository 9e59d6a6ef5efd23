"""Recipes of two steps that cross stages, environments, rewards and options, drawn so that every two choices that a
recipe may hold together meet in one of them."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import tomli_w
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from sleuth.recipe import Recipe

RUBRICS = {"positive_rubrics": [{"title": "Name", "description": "Names a town."}], "negative_rubrics": []}
NAMES = ("tiny-base", "tiny-reader", "tiny-real")
CHECKPOINT = "run/checkpoints/step-000002"
MODELS = Path(__file__).parents[1] / "models"
Settings = Mapping[str, Any]
"""Keys of the stage that is drawn, with dots; of the recipe (`ROOT`); and whole stages `before` and `after` it."""
Axes = Mapping[str, Mapping[str, Settings]]
"""Choices by axis, the default first."""
ROOT = ("model", "dtype")
OWN_CODE = '''
from sleuth.types import Action, Piece, Reply


def varied(episode) -> float:
    """Differs between any two texts, so that each group trains."""
    text = "".join(segment.text for segment in episode.whole.segments if segment.author == "policy")
    return sum(map(ord, text)) % 17 / 17


def plain(logprobs, old_logprobs, advantages, weights, *, factor=1.0):
    return -factor * ((logprobs - old_logprobs).exp() * advantages * weights).sum()


def count_words(text: str) -> str:
    """Count the words of a text.

    Args:
        text: What to count.
    """
    return str(len(text.split()))


class Twice:
    def __init__(self, task):
        self.task, self.left = task, 2

    async def open(self):
        return Reply(pieces=(Piece(text=self.task.question + " Write.\\n"),), max_tokens=6, stops=("</answer>",))

    async def reply(self, text, stop):
        self.left -= 1
        action = Action(kind="answer", text=text)
        if not self.left:
            return Reply(action=action, done="answered")
        return Reply(pieces=(Piece(text="\\nmore\\n"),), action=action, max_tokens=6, stops=("</answer>",))
'''


def write_inputs(folder: Path, world: Path) -> None:
    """Questions with criteria; and each model with weights moved a little: a teacher of the same tokens."""
    folder.mkdir()
    for name in ("qa_train.jsonl", "refiner_train.jsonl"):
        rows = [json.loads(row) for row in (world / name).read_text().splitlines()[:4]]
        (folder / name).write_text("".join(json.dumps(row | {"rubrics": RUBRICS}) + "\n" for row in rows))
    for name in NAMES:
        shutil.copytree(MODELS / name, folder / name, ignore=shutil.ignore_patterns("SHA256SUMS"))
        weights = load_file(folder / name / "model.safetensors")
        torch.manual_seed(0)
        moved = {key: value + 0.01 * torch.randn_like(value) for key, value in weights.items()}
        save_file(moved, folder / name / "model.safetensors", {"format": "pt"})


def training_axes(models: Path) -> dict[str, dict[str, Settings]]:
    """The axes of every stage that trains."""
    lora = {"lora": {"rank": 4, "alpha": 8.0}}
    return {
        "model": {name: {"model": str(MODELS / name), "teacher.model": str(models / name)} for name in NAMES}
        | {"checkpoint": {"model": str(models / CHECKPOINT), "teacher.model": str(models / NAMES[0])}},
        "dtype": {
            "float32": {},
            "bfloat16": {"dtype": "bfloat16"},
        },
        "lora": {"no": {}, "yes": lora, "attention": {"lora": {"rank": 2, "targets": ["q_proj", "v_proj"]}}},
        "optimiser": {"adamw": {}, "muon": {"optimiser": "muon"}},
        "schedule": {"constant": {}, "cosine": {"schedule": "cosine"}, "warmup": {"warmup_steps": 2}},
        "decay": {"no": {}, "yes": {"weight_decay": 10.0}},
        "embeddings": {"alike": {}, "slower": {"embedding_learning_rate": 1e-4}},
        "gradient": {"whole": {}, "clipped": {"max_grad_norm": 1e-3}},
        "memory": {
            "plain": {},
            "checkpointed": {"gradient_checkpointing": True},
            "small": {"tokens_per_micro_batch": 64},
        },
        "saved": {"each": {}, "last": {"save_every": 2}, "milestone": {"milestone_every": 1, "keep": 1}},
    }


def grpo_axes(world: Path, models: Path) -> Axes:
    questions = {"questions": str(models / "qa_train.jsonl")}
    rows = {"questions": str(models / "refiner_train.jsonl")}
    places = {"kind": "places", "texts": str(world / "text_train.jsonl"), "part": "rl", "suffix_tokens": 8, "limit": 20}
    text = {"kind": "text", "texts": str(world / "text_train.jsonl"), "prefix_tokens": 24, "suffix_tokens": 8}
    search = {"kind": "search", "prompt": "plain", "index": str(world / "index"), "turn_tokens": 12, "searches": 1}
    search |= {"passage_tokens": 24}
    message = {"dialect": "research", "prompt_role": "user"}
    refine = {"kind": "refine", "prompt": "bare", "turn_tokens": 16}
    tools = {"kind": "tools", "prompt": "bare", "tools": ["crossed_own:count_words"], "turn_tokens": 12, "calls": 1}
    thought = {"kind": "thought", "thought_tokens": 8}
    suffix = {"suffix_tokens": 4, "stops": ["."]}
    held_out = {"questions": str(world / "qa_test.jsonl"), "limit": 2}
    warm = {"kind": "warm_start", "hint": {"forced_search": True}, "below": 1.0, "prompts": 12, "rows_per_step": 2}
    warm |= {"steps": 1, "learning_rate": 1e-3, "taught": "answered"}
    supervised = {"kind": "supervised", "steps": 1, "rows_per_step": 2, "learning_rate": 1e-3}
    supervised |= {"data": text | {"limit": 8}}
    evaluate = {"kind": "evaluate", "name": "after", "data": held_out}
    closed = {"kind": "search", "dialect": "sleuth", "prompt": "plain", "closed_book": True}
    return training_axes(models) | {
        "env": {
            "sleuth": {"env": search | {"dialect": "sleuth"}, "data": questions},
            "search_r1": {"env": search | {"dialect": "search_r1"}, "data": questions},
            "reading": {"env": search | {"dialect": "reading", "prompt": "reading"}, "data": questions},
            "message": {"env": search | message, "data": questions},
            "forced": {"env": search | {"dialect": "sleuth", "forced_search": True}, "data": questions},
            "refine": {"env": refine, "data": rows, "context": 1024},
            "refine_thinking": {"env": refine | {"mode": "thinking"}, "data": rows, "context": 1024},
            "tools": {"env": tools, "data": questions},
            "tools_search": {"env": tools | {"index": str(world / "index")}, "data": questions},
            "own": {"env": {"kind": "python", "function": "crossed_own:Twice"}, "data": questions},
            "thought": {"env": thought, "data": places},
            "thought_text": {"env": thought | {"close": "earned"}, "data": text},
            "thought_suffix": {"env": thought | suffix, "data": places},
        },
        "reward": {
            "own": {},
            "answer": {"reward.1": {"kind": "answer"}},
            "scorer": {"reward.1": {"kind": "answer", "scorer": "search_r1_format"}},
            "token_f1": {"reward.1": {"kind": "token_f1"}},
            "format": {"reward.1": {"kind": "format"}},
            "cited_answer": {"reward.1": {"kind": "cited_answer"}},
            "citation": {"reward.1": {"kind": "citation"}},
            "rubric": {"reward.1": {"kind": "rubric"}},
            "gain": {"reward.1": {"kind": "gain"}},
            "gain_policy": {"reward.1": {"kind": "gain", "scorer": "policy", "decay": 0.9}},
            "suffix": {"reward.1": {"kind": "suffix", "judge": "ending"}},
        },
        "loss": {
            "default": {},
            "grpo": {"loss.setting": "grpo"},
            "dr_grpo": {"loss.setting": "dr_grpo", "loss.constant": 16},
            "gspo": {"loss.setting": "gspo"},
            "cispo": {"loss.setting": "cispo"},
            "best": {"loss.advantage": "best", "loss.old_logprobs": "learner"},
            "rloo": {"loss.advantage": "rloo"},
            "beta": {"loss.beta": 0.1},
            "learner": {"loss.old_logprobs": "learner", "loss.tis_cap": 2.0},
            "own": {"loss.function": "crossed_own:plain", "loss.parameters": {"factor": 2.0}},
        },
        "updates": {"one": {}, "passes": {"updates_per_batch": 2}, "minibatches": {"prompts_per_update": 1}},
        "credit": {
            "no": {},
            "search_gain": {"credit": {"kind": "search_gain", "penalty": 0.5}},
            "citation_gain": {"credit": {"kind": "citation_gain", "penalty": 0.5}},
        },
        "teacher": {
            "no": {},
            "always": {"teacher.when": "always"},
            "wrong": {"teacher.when": "wrong"},
            "top_k": {"teacher.top_k": 4},
        },
        "temperature": {"one": {}, "lower": {"sampling.temperature": 0.7}},
        "no_signal": {"kept": {}, "replaced": {"replace_no_signal": 1}},
        "control": {"no": {}, "shuffled": {"reward.0.shuffle": True}},
        "probed": {"no": {}, "yes": {"probe_prompts": 2}},
        "before": {"nothing": {}, "warm_start": {"before": warm}, "supervised": {"before": supervised}},
        "after": {
            "nothing": {},
            "evaluate": {"after": evaluate},
            "forced": {"after": evaluate | {"forced_search_arm": True}},
            "closed": {"after": evaluate | {"context": 300, "env": closed}},
            "probe": {
                "after": {"kind": "probe", "name": "after", "samples": 2, "env": thought}
                | {"data": places | {"part": "held_out", "limit": 2}}
            },
        },
    }  # fmt: skip


def supervised_axes(world: Path, models: Path) -> Axes:
    texts = {"texts": str(world / "text_train.jsonl"), "limit": 8}
    held_out = {"texts": str(world / "text_test.jsonl"), "limit": 4}
    shape = {"layers": 2, "width": 32, "heads": 2, "kv_heads": 1, "head_dim": 16, "mlp": 32, "context": 1024}
    rows = {"kind": "rows", "questions": str(world / "refiner_train.jsonl"), "limit": 8, "too_long": "skip"}
    search = {"kind": "search", "dialect": "sleuth", "prompt": "plain", "index": str(world / "index")}
    evaluate = {"kind": "evaluate", "name": "after", "context": 300, "env": search | {"turn_tokens": 8}}
    return training_axes(models) | {
        "data": {
            "world_text": {"data": {"kind": "world_text", "people": 50, "mix": {"lookup": 1.0, "reading": 1.0}}},
            "rows": {"data": rows, "env": {"kind": "refine", "prompt": "bare", "turn_tokens": 200}},
            "rows_chat": {
                "data": rows,
                "env": {"kind": "refine", "prompt_role": "user", "mode": "thinking", "turn_tokens": 200},
            },
            "text": {"data": {"kind": "text", "prefix_tokens": 24, "suffix_tokens": 8} | texts},
            "thoughts": {"data": {"kind": "thoughts", "empty": 0.25} | texts},
        },
        "held_out": {"no": {}, "yes": {"held_out": held_out}},
        "source": {"whole": {}, "less": {"source_weight": 0.1}, "no": {"source_weight": 0.0}},
        "tokens": {"no": {}, "new": {"tokens": ["<remark>", "</remark>"]}},
        "init": {"no": {}, "yes": {"init": shape}},
        "after": {
            "nothing": {},
            "evaluate": {"after": evaluate | {"data": {"questions": str(world / "qa_test.jsonl"), "limit": 2}}},
        },
    }


def preference_axes(world: Path, models: Path) -> Axes:
    careless = {"kind": "text", "texts": str(world / "careless_train.jsonl"), "suffix_tokens": 6, "limit": 12}
    text = {"kind": "text", "texts": str(world / "text_train.jsonl"), "prefix_tokens": 24, "suffix_tokens": 8}
    win = {"kind": "win_rate", "name": "after", "judge": "ending", "stops": ["."]}
    win |= {"data": careless | {"texts": str(world / "careless_test.jsonl"), "limit": 2}}
    return training_axes(models) | {
        "data": {"careless": {"data": careless}, "text": {"data": text}},
        "reward": {
            "own": {},
            "ending": {"reward.0": {"kind": "pairwise", "judge": "ending"}},
        },
        "loss": {
            "dpo": {},
            "beta": {"loss.beta": 0.5},
            "winner": {"loss.kind": "winner_nll"},
            "original": {"loss.kind": "original_nll"},
        },
        "stops": {"no": {}, "yes": {"stops": ["."]}},
        "temperature": {"one": {}, "lower": {"sampling.temperature": 0.7}},
        "after": {"nothing": {}, "win_rate": {"after": win}},
    }


BASES: dict[str, dict[str, Any]] = {
    "grpo": {
        "prompts_per_step": 2,
        "samples_per_prompt": 4,
        "context": 400,
        "slots": 8,
        "probe_prompts": 0,
        "red_team_every": 1,
        "reward": [{"kind": "python", "function": "crossed_own:varied"}],
    },
    "supervised": {"rows_per_step": 2},
    "online_dpo": {
        "prompts_per_step": 2,
        "samples_per_prompt": 2,
        "slots": 8,
        "reward": [{"kind": "python", "function": "crossed_own:varied"}],
    },
}
AXES = {"grpo": grpo_axes, "supervised": supervised_axes, "online_dpo": preference_axes}
COUNTS = {"grpo": 140, "supervised": 26, "online_dpo": 22}
"""Recipes by the kind of stage that trains."""
SCENE = {"grpo": "env", "supervised": "data", "online_dpo": "data"}
"""The axis that decides most about the others."""
SILENT = frozenset({"model", "env", "data", "memory", "saved", "probed", "before", "after", "held_out", "init"}) | {
    "stops", "replaced", "search_gain", "citation_gain",
    "searched", "answer", "scorer", "sub_match", "token_f1", "format", "cited_answer",
}  # fmt: skip
"""Axes that are no option of a recipe, or that change no figure of two steps; and choices that act in groups without
signal, after many steps, or on what no tiny model does: it neither searches nor answers nor cites nor stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossed:
    """A recipe: the kind of its stage, and its choice on each axis."""

    kind: str
    choices: Mapping[str, str]
    axes: Axes = field(repr=False)

    def table(self) -> dict[str, Any]:
        """The root table of the recipe."""
        stage = {"kind": self.kind, "name": "trained", "steps": 2, "learning_rate": 1e-3, "save_every": 1}
        stage |= copy.deepcopy(BASES[self.kind])
        root: dict[str, Any] = {"name": "crossed", "seed": 3}
        around: dict[str, Any] = {}
        for axis, choice in self.choices.items():
            for key, value in self.axes[axis][choice].items():
                if key in ("before", "after"):
                    around[key] = value
                else:
                    _set(root if key in ROOT else stage, key.split("."), copy.deepcopy(value))
        if "init" in stage:
            del root["model"]
        if self.choices.get("teacher", "no") == "no":  # it is that of the model
            del stage["teacher"]
        if stage.get("env", {}).get("kind") == "refine" and "questions" in around.get("after", {}).get("data", {}):
            file = Path(around["after"]["data"]["questions"])
            around["after"] = around["after"] | {
                "data": {"questions": str(file.with_name("refiner_test.jsonl")), "limit": 2}
            }
        stages = [around.get("before"), stage, around.get("after")]
        return root | {"stage": [one for one in stages if one is not None]}

    def write(self, folder: Path) -> Path:
        """The recipe's file, beside the functions that it names."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "crossed_own.py").write_text(OWN_CODE)
        file = folder / "crossed.toml"
        file.write_text(tomli_w.dumps(self.table()))
        return file

    def without(self, axis: str) -> Crossed:
        """The same recipe with the default on an axis."""
        return Crossed(kind=self.kind, choices={**self.choices, axis: next(iter(self.axes[axis]))}, axes=self.axes)

    def on_each(self, axis: str) -> list[Crossed]:
        """The same recipe with each choice on an axis."""
        return [
            Crossed(kind=self.kind, choices={**self.choices, axis: choice}, axes=self.axes)
            for choice in self.axes[axis]
        ]

    def options(self) -> list[str]:
        """Axes that are away from their default and should change a figure."""
        unread = {"reward", "temperature"} if self.choices.get("loss") == "original" else set[str]()
        if self.choices.get("env", "").startswith(("own", "thought")):
            unread.add("grpo")  # means over sequences and over tokens agree where all episodes are cut at one length
        away = [axis for axis, choice in self.choices.items() if choice != next(iter(self.axes[axis]))]
        return [axis for axis in away if not {axis, self.choices[axis]} & (SILENT | unread)]

    def loads(self) -> bool:
        """Whether its keys fit together."""
        try:
            Recipe.model_validate(self.table())
        except ValidationError:
            return False
        return True


def _set(table: Any, path: list[str], value: Any) -> None:
    *parents, last = path
    for name in parents:
        table = table[int(name)] if isinstance(table, list) else table.setdefault(name, [] if last.isdigit() else {})
    if isinstance(table, list):
        table.insert(int(last), value)
    else:
        table[last] = value


def draw(kind: str, axes: Axes, count: int) -> tuple[list[Crossed], list[Crossed]]:
    """Recipes that load, which between them hold most pairs of choices; and a recipe for each pair of choices that was
    drawn and that no recipe may hold."""
    rng = random.Random(kind)
    default = {axis: next(iter(choices)) for axis, choices in axes.items()}
    values = [(axis, choice) for axis in axes for choice in axes[axis]]
    open_pairs = {pair for pair in combinations(values, 2) if pair[0][0] != pair[1][0]}
    drawn, refused = [], []
    while open_pairs and len(drawn) < count:
        pair = rng.choice(sorted(open_pairs))
        open_pairs.discard(pair)
        start = Crossed(kind=kind, choices=default | dict(pair), axes=axes)
        scenes = [start] if SCENE[kind] in dict(pair) else start.on_each(SCENE[kind])  # rewards fit some scenes alone
        recipe = next((one for one in scenes if one.loads()), None)
        if recipe is None:
            refused.append(start)
            continue
        for axis in rng.sample([axis for axis in axes if axis not in dict(pair)], len(axes) - 2):
            gains = {choice: len(_pairs(recipe.choices | {axis: choice}, axis) & open_pairs) for choice in axes[axis]}
            for choice in sorted(gains, key=lambda choice: (-gains[choice], rng.random()))[:3]:
                further = Crossed(kind=kind, choices={**recipe.choices, axis: choice}, axes=axes)
                if further.loads():
                    recipe = further
                    break
        open_pairs -= {two for axis in axes for two in _pairs(recipe.choices, axis)}
        drawn.append(recipe)
    return drawn, refused


def _pairs(choices: Mapping[str, str], axis: str) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    """The pairs of an axis's choice with those of the others, in the order of the axes."""
    order = list(choices.items())
    at = list(choices).index(axis)
    return {(one, order[at]) for one in order[:at]} | {(order[at], one) for one in order[at + 1 :]}
