"""Two hundred recorded episodes of a scripted policy that searches in the generated world, played and scored by us."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sleuth.dialect import Tool
from sleuth.episodes.calls import call_of
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.learn.models import random_model
from sleuth.recipe import InitRecipe
from sleuth.render import Renderer
from sleuth.rollout import Rollout
from sleuth.trainers.search_stage import SearchStage, load_search_stage
from sleuth.types import Group, Passage, RetrievalFailed, Retriever, Sampling, Task
from sleuth.world.tokens import make_tokenizer

CONTEXT = 2200
SHAPE = InitRecipe(layers=1, width=16, heads=1, kv_heads=1, head_dim=16, mlp=16, context=CONTEXT)
END = "<|im_end|>"
UNREACHABLE = "the far side of the moon"
"""A query that the retriever never answers."""

RECIPE = """
name = "interop"
model = "{model}"

[[stage]]
kind = "grpo"
steps = 3
prompts_per_step = 50
samples_per_prompt = 4
learning_rate = 1e-3
context = {context}
data = {{ questions = "{world}/qa_train.jsonl", limit = 50 }}

[stage.env]
kind = "search"
dialect = "chat"
prompt = "tool_rules"
prompt_role = "user"
index = "{world}/index"
turn_tokens = 300

[[stage.reward]]
kind = "answer"
scorer = "search_r1"

[[stage.reward]]
kind = "token_f1"
weight = 0.5

[[stage.reward]]
kind = "format"
weight = 0.125
"""


TEMPLATE = (
    "{%- if tools -%}{{- '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' -}}{%- endif -%}"
    "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""A template of our own, which keeps what was written."""


def write_model(folder: Path, template: str, added: Sequence[str] = ()) -> None:
    """A model with random weights whose tokenizer has a chat template, and a token for each text in `added`."""
    tokenizer = make_tokenizer(200)
    tokenizer.add_tokens([*added])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", END]})
    tokenizer.eos_token = END
    tokenizer.chat_template = template
    random_model(SHAPE, tokenizer, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_recipe(file: Path, model: Path, world: Path) -> Path:
    file.write_text(RECIPE.format(model=model, world=world, context=CONTEXT))
    return file


class FailingRetriever:
    """A retriever that cannot answer `UNREACHABLE`."""

    def __init__(self, retriever: Retriever) -> None:
        self.retriever = retriever

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        if UNREACHABLE in queries:
            raise RetrievalFailed("nobody answers from there")
        return await self.retriever.search(queries, k)


def load_stage(recipe: Path, *overrides: str) -> SearchStage:
    """The stage, with a retriever that fails at one query."""
    stage = load_search_stage(recipe, overrides, verdicts=recipe.parent / "verdicts.sqlite")
    return replace(stage, setting=replace(stage.setting, retriever=FailingRetriever(stage.setting.retriever)))


def search(tool: Tool, query: str, thought: str = "I need to look this up.") -> str:
    return f"<think>{thought}</think>\n<tool_call>\n{call_of([query], tool)}\n</tool_call>{END}"


def answer(text: str, after: str = "") -> str:
    return f"<think>That is it.</think>\n<answer>{text}</answer>{after}{END}"


def turns_of(tool: Tool, task: Task, kind: int) -> list[str]:
    """What the policy writes, turn by turn: right, wrong, malformed, cut, or out of searches."""
    question, golden = task.question, task.golden_answers[0]
    searches = [search(tool, f"{question} {number}") for number in range(5)]
    return [
        [search(tool, question), answer(golden)],
        [search(tool, question), answer("a place nobody knows")],
        [answer(golden)],
        [searches[0], searches[1], answer(f"it may be {golden}")],
        [search(tool, question), f"<think>I do not know.</think>{END}"],
        [search(tool, question), f"<answer>{golden}{END}"],
        [search(tool, question), answer(golden, after=" or so")],
        searches,  # none is left for the fifth
        [searches[0], searches[1], searches[2], searches[3], answer(golden)],
        [search(tool, question), "<think>" + "on and on " * 200],  # the turn is cut
        [search(tool, question, "word by word " * 50)] * 4 + [answer(golden)],  # the context ends
        [search(tool, UNREACHABLE), answer(golden)],
        [search(tool, question, "What is <answer>this</answer>?"), answer(golden)],
    ][kind]


KINDS = 13


async def _play(stage: SearchStage, tasks: Sequence[Task], samples: int) -> list[Group]:
    def turn(text: str, sampling: Sampling) -> str:
        *_, prompt, sample, number = sampling.key
        return turns_of(stage.tool, tasks[prompt], (prompt * samples + sample) % KINDS)[number]

    rollout = Rollout(
        engine=ScriptedEngine(stage.tokenizer, turn),
        renderer=Renderer(stage.tokenizer, stage.setting.dialect.tags),
        context=CONTEXT,
        temperature=1.0,
        key=(),
    )
    return await rollout.groups(tasks, stage.setting.env, samples=samples, reward=stage.reward)


def recorded_groups(stage: SearchStage, samples: int = 4) -> list[Group]:
    """A scored group of each task of the stage."""
    return asyncio.run(_play(stage, list(stage.tasks.values()), samples))
