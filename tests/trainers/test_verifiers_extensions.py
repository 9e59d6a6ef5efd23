"""A reward, a tool and an environment as one writes them for verifiers, which the docs count: they run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer

pytest.importorskip("verifiers", reason="`make trainers` makes an environment with verifiers")

import verifiers.v1 as vf
from harness import config_of, offline_uv, replied
from mcp import Client
from mcp.server.mcpserver import MCPServer

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("own_code", "other_trainers"):
        monkeypatch.syspath_prepend(str(EXAMPLES / folder))


def test_a_reward() -> None:
    fn = f"{EXAMPLES}/other_trainers/verifiers_reward.py:brevity"
    task = vf.Task(vf.TaskData(prompt="?"), vf.TaskConfig(rewards={"brevity": vf.RewardFunctionConfig(fn=fn)}))
    said = vf.MessageNode(message=vf.AssistantMessage(content="Tarn"), sampled=True)
    used = vf.ModelCall(node=0, usage=vf.Usage(prompt_tokens=9, completion_tokens=15))
    agent = vf.AgentInfo(config=vf.AgentConfig())
    trace = vf.Trace(task=vf.TraceTask(type="Task", data=task.data), agent=agent, nodes=[said], calls=[used])
    asyncio.run(task.score(trace))
    assert trace.reward == 0.75


def test_a_tool() -> None:
    from verifiers_tool import CalculatorToolset

    server = MCPServer("calculator")
    CalculatorToolset(vf.SharedToolsetConfig()).register(server)

    async def called() -> Any:
        async with Client(server) as client:
            return await client.call_tool("calculator", {"expression": "6 * 7"})

    assert float(asyncio.run(called()).content[0].text) == 42


def test_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from verifiers_env import GuessingConfig, GuessingEnvConfig

    offline_uv(tmp_path, monkeypatch)
    script = iter(["<answer>9</answer>", "I do not know", "<answer>3</answer>"])
    server = ChatServer(
        answer=lambda body: replied(body, {"role": "assistant", "content": next(script)}),
        headers={"content-type": "text/event-stream"},
    )
    taskset = GuessingConfig(id="verifiers_env", questions=EXAMPLES / "own_code" / "numbers.jsonl")

    async def played(url: str) -> Any:
        client, agent = config_of(url)
        env = vf.load_environment(GuessingEnvConfig(taskset=taskset, player=agent))
        async with env.serving():
            return await env.run_episode(next(iter(env.taskset)), vf.ModelContext(model="m", client=client))

    with server.running():
        episode = asyncio.run(played(server.url))
    assert episode.errors == []
    [trace] = episode.traces
    assert trace.reward == pytest.approx(1 / 3)
    assert [body["messages"][-1]["content"] for body in server.asked[1:]] == ["lower", "Write one number."]
