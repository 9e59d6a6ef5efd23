"""Agents of two frameworks, as their documentation writes them, call the policy (`make agents`)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from chat_tokenizers import KEEPS, chat_tokenizer

from sleuth.answers.tables import agent_score
from sleuth.episodes.agent import agent_setting
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.episodes.tables import AgentEnvRecipe
from sleuth.render import Renderer
from sleuth.rollout import Rollout
from sleuth.types import Sampling, Task

FOLDER = Path(__file__).parents[2] / "examples" / "own_code"
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "6*7"}}\n</tool_call><|im_end|>'


@pytest.mark.parametrize(("module", "package"), [("agents_sdk", "agents"), ("langgraph_agent", "langgraph")])
def test_an_agent_of_a_framework_is_played_and_recorded(
    module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package)
    monkeypatch.chdir(FOLDER)
    env = AgentEnvRecipe.model_validate({"kind": "agent", "function": f"{module}.py:solve"})
    tokenizer = chat_tokenizer(KEEPS)
    setting = agent_setting(env, tokenizer)

    def answer(text: str, sampling: Sampling) -> str:
        return CALL if sampling.key[-1] == 0 else "42<|im_end|>"

    rollout = Rollout(
        engine=ScriptedEngine(tokenizer, answer),
        renderer=Renderer(tokenizer),
        context=1000,
        temperature=1.0,
        key=(0,),
    )
    task = Task(id="q", question="6*7?", golden_answers=("42",))
    [group] = asyncio.run(rollout.groups([task], setting.env, samples=4))
    for episode in group.episodes:
        [trajectory] = episode.trajectories
        call, last = trajectory.actions
        assert (json.loads(call.text)["arguments"], call.result) == ('{"expression": "6*7"}', "42")
        assert (last.text, agent_score(episode, setting.dialect)) == ("42", 1.0)
