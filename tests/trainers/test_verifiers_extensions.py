"""A reward, a tool and an environment as one writes them for verifiers, which the docs count: they run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer

pytest.importorskip("verifiers", reason="`make trainers` makes an environment with verifiers")

import verifiers.v1 as vf
from harness import config_of, offline_uv, replied, whole
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


def test_a_metric() -> None:
    fn = f"{EXAMPLES}/other_trainers/verifiers_metric.py:turns"
    task = vf.Task(vf.TaskData(prompt="?"), vf.TaskConfig(metrics={"turns": vf.DecoratedFunctionConfig(fn=fn)}))
    said = [vf.MessageNode(message=vf.AssistantMessage(content="Tarn"), sampled=True, parent=at) for at in (None, 0)]
    agent = vf.AgentInfo(config=vf.AgentConfig())
    trace = vf.Trace(task=vf.TraceTask(type="Task", data=task.data), agent=agent, nodes=said)
    asyncio.run(task.score(trace))
    assert (trace.metrics, trace.reward) == ({"turns": 2.0}, 0.0)


def test_a_curriculum() -> None:
    from verifiers_curriculum import SumConfig, SumTaskset

    tasks = [*SumTaskset(SumConfig(id="sums")).take(20)]
    assert [task.data.level for task in tasks] == [at // 8 for at in range(20)]
    assert all(eval(task.data.prompt[:-1]) == int(task.data.answer) for task in tasks)


def test_a_stream_of_rows(tmp_path: Path) -> None:
    from verifiers_stream import LineConfig, LineTaskset

    (tmp_path / "rows.jsonl").write_text("".join(f'{{"question": "Question {at}?"}}\n' for at in range(3)))
    tasks = LineTaskset(LineConfig(id="lines", file=tmp_path / "rows.jsonl"))
    assert [task.data.prompt for task in tasks] == ["Question 0?", "Question 1?", "Question 2?"]


def test_a_stateful_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from verifiers_bank import BankConfig

    offline_uv(tmp_path, monkeypatch)
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES / "other_trainers"))
    arguments = '{"payer": "Ada", "payee": "Bo", "amount": 10}'
    made = [{"index": 0, "id": "1", "type": "function", "function": {"name": "transfer", "arguments": arguments}}]
    script = iter([{"tool_calls": made}, {"content": "done"}])
    server = ChatServer(
        answer=lambda body: replied(body, {"role": "assistant", **next(script)}),
        headers={"content-type": "text/event-stream"},
    )

    async def played(url: str) -> Any:
        client, agent = config_of(url)
        taskset = BankConfig(id="verifiers_bank", questions=EXAMPLES / "own_code" / "transfers.jsonl")
        env = vf.load_environment(vf.SingleAgentEnvConfig(taskset=taskset, agent=agent))
        async with env.serving():
            return await env.run_episode(next(iter(env.taskset)), vf.ModelContext(model="m", client=client))

    with server.running():
        episode = asyncio.run(played(server.url))
    assert episode.errors == []
    [trace] = episode.traces
    assert (trace.errors, trace.reward) == ([], 1.0)


AGENT = """
import os, sys
from openai import OpenAI

messages = [{"role": "user", "content": sys.argv[1]}]
print(OpenAI(max_retries=0).chat.completions.create(model="m", messages=messages).choices[0].message.content)
"""


def test_an_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from verifiers_program import AgentConfig
    from verifiers_stream import LineConfig

    offline_uv(tmp_path, monkeypatch)
    (tmp_path / "my_program.py").write_text(AGENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = ChatServer(answer=lambda body: whole(body, "42"), headers={"content-type": "application/json"})

    async def played(url: str) -> Any:
        client, agent = config_of(url)
        agent = agent.model_copy(update={"harness": AgentConfig(id="verifiers_program", program="my_program")})
        taskset = LineConfig(id="verifiers_stream", file=rows)
        env = vf.load_environment(vf.SingleAgentEnvConfig(taskset=taskset, agent=agent))
        async with env.serving():
            return await env.run_episode(next(iter(env.taskset)), vf.ModelContext(model="m", client=client))

    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "6 * 7?"}\n')
    with server.running():
        episode = asyncio.run(played(server.url))
    assert episode.errors == []
    assert episode.traces[0].last_reply == "42"
    assert [body["messages"][-1]["content"] for body in server.asked] == ["6 * 7?"]


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
