"""verifiers serves our tool and scores our tasks: the same rewards for the same messages."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer
from recorded import KINDS, TEMPLATE, FailingRetriever, load_stage, recorded_groups, write_model, write_recipe

from sleuth.types import Action, Episode, SleuthError

pytest.importorskip("verifiers", reason="`make trainers` makes an environment with verifiers")

import verifiers.v1 as vf
from harness import config_of, offline_uv, replied
from verifiers.v1.harnesses.utils.mcp import mcp_client
from verifiers.v1.mcp import serve_shared

from sleuth.trainers import verifiers as ours

CALL = re.compile(r"(?s)\s*<tool_call>\s*(.*?)\s*</tool_call>")
THOUGHT = re.compile(r"(?s)\A<think>(.*?)</think>\s*")


@pytest.fixture(scope="module")
def recipe(world: Path, once: Callable[..., Path]) -> Path:
    def make(folder: Path) -> None:
        folder.mkdir()
        write_model(folder / "model", TEMPLATE)
        write_recipe(folder / "chat.toml", folder / "model", world)

    return once("verifiers", make) / "chat.toml"


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage of each recipe with a retriever that fails at one query."""
    load = ours.load_search_stage

    def with_failures(*named: Any, **options: Any) -> Any:
        stage = load(*named, **options)
        retriever = FailingRetriever(stage.setting.retriever)
        return replace(stage, setting=replace(stage.setting, retriever=retriever))

    monkeypatch.setattr(ours, "load_search_stage", with_failures)
    ours.stage_of.cache_clear()


def taskset_of(recipe: Path, **config: Any) -> Any:
    named = {"recipe": str(recipe), "verdicts": str(recipe.parent / "verdicts.sqlite")}
    return vf.load_taskset(ours.SearchTasksetConfig(id="sleuth-search", **named, **config))


def said(text: str, calls: list[str], apart: bool) -> vf.AssistantMessage:
    """A turn as a chat server returns it; with `apart` it parses thoughts too."""
    content = CALL.sub("", text)
    thought = THOUGHT.match(content) if apart else None
    made = [
        vf.ToolCall(id=name, name=call["name"], arguments=json.dumps(call["arguments"]))
        for name, call in zip(calls, map(json.loads, CALL.findall(text)), strict=False)
    ]
    return vf.AssistantMessage(
        content=content[thought.end() :] if thought else content,
        reasoning_content=thought[1] if thought else None,
        tool_calls=made or None,
    )


def shown_for(action: Action, episode: Episode, at: int) -> str:
    """The tool's answer that the policy read after its turn number `at`."""
    if action.failure:
        return f"error: {action.failure}"
    segments = episode.trajectory.segments
    turns = [index for index, segment in enumerate(segments) if segment.author == "policy"]
    end = turns[at + 1] if at + 1 < len(turns) else len(segments)
    return "".join(segment.text for segment in segments[turns[at] + 1 : end] if segment.author == "env")


def trace_of(task: Any, episode: Episode, *, apart: bool) -> Any:
    """The trace of our episode: what a chat server and verifiers' harness would have said."""
    trajectory = episode.trajectory
    turns = [segment for segment in trajectory.segments if segment.author == "policy"]
    messages: list[Any] = [vf.UserMessage(content=task.data.prompt)]
    for at, turn in enumerate(turns):
        messages.append(said(turn.text, [f"call-{at}"], apart))
        answered = at + 1 < len(turns) or trajectory.stop == "failed"
        if answered:
            shown = shown_for(trajectory.actions[at], episode, at)
            messages.append(vf.ToolMessage(tool_call_id=f"call-{at}", content=shown))
    trace = vf.Trace(task=vf.TraceTask(type="SearchTask", data=task.data), agent=vf.AgentInfo(config=vf.AgentConfig()))
    for message in messages:
        parent = len(trace.nodes) - 1 if trace.nodes else None
        trace.nodes.append(vf.MessageNode(parent=parent, message=message, sampled=message.role == "assistant"))
        if message.role == "assistant":
            trace.calls.append(vf.ModelCall(node=len(trace.nodes) - 1, finish_reason="stop"))
    if trajectory.stop == "length" and not CALL.search(turns[-1].text):
        trace.calls[-1].finish_reason = "length"
    return trace


def test_200_recorded_episodes_have_the_same_rewards_by_their_messages(recipe: Path, failing: None) -> None:
    groups = recorded_groups(load_stage(recipe))
    tasks = {task.data.id: task for task in taskset_of(recipe)}
    compared: list[tuple[float | None, float | None]] = []
    reasons: list[str] = []

    async def score_all() -> None:
        for group in groups:
            for at, (episode, score) in enumerate(zip(group.episodes, group.scores, strict=True)):
                task = tasks[group.task.id]
                trace = trace_of(task, episode, apart=at % 2 == 0)
                try:
                    await task.score(trace)
                except vf.TaskError as error:
                    reasons.append(str(error))
                reward = trace.rewards["recipe_reward"]
                compared.append((score.value, reward and reward.value))
                if reward is not None:
                    assert trace.metrics == score.parts

    asyncio.run(score_all())
    assert len(compared) == 200
    assert [theirs for _, theirs in compared] == [mine for mine, _ in compared]
    assert sum(mine is None for mine, _ in compared) == len(reasons) == 200 // KINDS
    assert all("retriever failed: nobody answers from there" in reason for reason in reasons)
    assert len({mine for mine, _ in compared}) == 8


def test_verifiers_serves_our_tool(recipe: Path) -> None:
    taskset = taskset_of(recipe)
    stage = ours.stage_of(str(recipe), (), taskset.config.verdicts)
    question = next(iter(stage.tasks.values())).question

    async def asked() -> tuple[Any, str]:
        async with serve_shared(taskset.toolsets(taskset.config)) as servers:
            [server] = servers.values()
            async with mcp_client({"url": server.url}) as client:
                [tool] = (await client.list_tools()).tools
                found = await client.call_tool(tool.name, {"query": question})
                return tool, found.content[0].text

    tool, text = asyncio.run(asked())
    assert (tool.name, tool.description) == (stage.tool.name, stage.tool.description)
    assert tool.input_schema["properties"]["query"]["description"] == stage.tool.argument_description
    assert text == asyncio.run(stage.call({"query": question})).text


def test_verifiers_plays_an_episode_with_its_own_harness(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline_uv(tmp_path, monkeypatch)
    taskset = taskset_of(recipe, overrides=["grpo.data.limit=1"]).config
    [asked] = taskset.stage.tasks.values()

    def answer(body: dict[str, Any]) -> tuple[int, bytes]:
        if body["messages"][-1]["role"] == "tool":
            return replied(body, {"role": "assistant", "content": f"<answer>{asked.golden_answers[0]}</answer>"})
        function = {"name": "search", "arguments": json.dumps({"query": asked.question})}
        call = {"index": 0, "id": "1", "type": "function", "function": function}
        return replied(body, {"role": "assistant", "reasoning_content": "I look it up.", "tool_calls": [call]})

    async def played(url: str) -> Any:
        client, agent = config_of(url)
        env = vf.load_environment(vf.SingleAgentEnvConfig(taskset=taskset, agent=agent))
        async with env.serving():
            [task] = env.taskset
            return await env.run_episode(task, vf.ModelContext(model="m", client=client))

    server = ChatServer(answer=answer, headers={"content-type": "text/event-stream"})
    with server.running():
        [trace] = asyncio.run(played(server.url)).traces
    assert [error.message for error in trace.errors] == []
    assert trace.metrics["token_f1"] == 1.0
    assert trace.reward == 1 + 0.5  # no format: the answer has no thought


def test_a_search_that_finds_something_else_now_is_not_scored(recipe: Path) -> None:
    [task, *_] = taskset_of(recipe)
    stage = ours.stage_of(str(recipe), (), task.data.verdicts)
    [group, *_] = recorded_groups(stage, samples=1)
    trace = trace_of(task, group.episodes[0], apart=False)
    trace.nodes[2].message.content = trace.nodes[2].message.content.replace("[1]", "[7]")
    with pytest.raises(vf.TaskError, match="finds other passages than when the episode was played"):
        asyncio.run(task.score(trace))
    assert trace.rewards == {"recipe_reward": None}


def test_a_call_that_cannot_be_read_is_no_search(recipe: Path) -> None:
    [task, *_] = taskset_of(recipe)
    stage = ours.stage_of(str(recipe), (), task.data.verdicts)
    [group, *_] = recorded_groups(stage, samples=1)
    trace = trace_of(task, group.episodes[0], apart=False)
    trace.nodes[1].message.tool_calls[0].arguments = '{"query": 3}'
    trace.nodes[2].message.content = "Error executing tool search: a string was expected"
    episode = asyncio.run(ours.episode_of(stage, stage.tasks[task.data.id], trace))
    assert [action.kind for action in episode.trajectory.actions] == ["invalid", "answer"]


def test_a_taskset_without_a_recipe_is_refused() -> None:
    with pytest.raises(SleuthError, match="recipe is missing: name a recipe file"):
        list(vf.load_taskset(ours.SearchTasksetConfig(id="sleuth-search")))
