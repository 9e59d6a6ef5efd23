"""Episodes in which a scripted policy calls tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace

from sleuth.answers.answer import AnswerReward
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.render import Renderer, load_tokenizer
from sleuth.rollout import Rollout
from sleuth.search.dialects import TOOLS_TEXT
from sleuth.search.tools import AnyTool, ToolEnv
from sleuth.types import EpisodeKey, Group, Task

DIALECT = replace(TOOLS_TEXT, searches=9, hints=9)


def call(name: str, **arguments: object) -> str:
    """What the policy writes to call a tool."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def played(task: Task, tools: Mapping[str, AnyTool], *turns: str) -> Group:
    """A scored episode of a policy that writes these turns."""
    tokenizer = load_tokenizer("models/tiny-base")
    writing = iter(turns)
    rollout = Rollout(
        engine=ScriptedEngine(tokenizer, lambda text, sampling: next(writing)),
        renderer=Renderer(tokenizer, DIALECT.tags),
        context=900,
        temperature=1.0,
        key=(0,),
    )

    def env(asked: Task, key: EpisodeKey) -> ToolEnv:
        return ToolEnv(asked, DIALECT, "{question}", tools)

    [group] = asyncio.run(rollout.groups([task], env, samples=1, reward=AnswerReward(DIALECT)))
    return group
