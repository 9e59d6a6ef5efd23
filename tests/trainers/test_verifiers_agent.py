"""An environment of verifiers is played by the policy as verifiers plays it: the same rewards."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer
from chat_tokenizers import KEEPS, chat_tokenizer

pytest.importorskip("verifiers", reason="`make trainers` makes an environment with verifiers")

import verifiers.v1 as vf
from harness import config_of, offline_uv, replied
from verifiers.v1.utils.loaders import resolve_env_config

from sleuth.answers.tables import EnvironmentReward
from sleuth.data.streamed import StreamRecipe
from sleuth.episodes.agent import agent_setting
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.episodes.tables import AgentEnvRecipe
from sleuth.render import Renderer
from sleuth.rollout import Rollout
from sleuth.types import Episode, Sampling

EXAMPLES = Path(__file__).parents[2] / "examples"
SYSTEM = "Be brief."
QUESTIONS = EXAMPLES / "own_code" / "numbers.jsonl"


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (EXAMPLES / "own_code", EXAMPLES / "other_trainers", Path(__file__).parent):
        monkeypatch.syspath_prepend(str(folder))


def guess(seed: str, turn: int) -> str:
    """A reply: a number of twenty, or now and then none."""
    number = hashlib.sha256(f"{seed} {turn}".encode()).digest()[0] % 24
    return f"<answer>{number}</answer>" if number <= 20 else "I do not know"


def played(env: dict[str, Any], answer: Callable[[str, Sampling], str], samples: int, limit: int = 99) -> list[Episode]:
    """Our episodes of the tasks of an environment."""
    parameters = {"env": env}
    example = str(EXAMPLES / "own_code" / "verifiers_agent.py")
    recipe = AgentEnvRecipe.model_validate(
        {"kind": "agent", "function": f"{example}:solve", "parameters": parameters, "seconds": 300}
    )
    data = StreamRecipe.model_validate({"kind": "python", "function": f"{example}:rows", "parameters": parameters})
    setting = agent_setting(recipe, tokenizer := chat_tokenizer(KEEPS))
    rollout = Rollout(
        engine=ScriptedEngine(tokenizer, answer),
        renderer=Renderer(tokenizer),
        context=2000,
        temperature=1.0,
        key=(0,),
    )
    tasks = data.stream(0, "").first(limit)
    groups = asyncio.run(rollout.groups(tasks, setting.env, samples=samples))
    return [episode for group in groups for episode in group.episodes]


def played_by_verifiers(env: dict[str, Any], url: str, samples: int) -> list[float]:
    """The rewards of verifiers' own run of the same tasks."""
    client, _ = config_of(url)

    async def run() -> list[float]:
        environment = vf.load_environment(resolve_env_config(env))
        async with environment.serving():
            context = vf.ModelContext(model="m", client=client)
            tasks = [task for task in environment.taskset for _ in range(samples)]
            episodes = [await environment.run_episode(task, context) for task in tasks]
        assert [error for episode in episodes for error in episode.errors] == []
        return [trace.reward for episode in episodes for trace in episode.traces]

    return asyncio.run(run())


def test_200_episodes_of_an_environment_have_the_rewards_that_verifiers_gives_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KEY", "none")
    player = {"harness": {"id": "in_process_harness"}, "runtime": {"type": "subprocess"}}
    env = {"taskset": {"id": "verifiers_env", "questions": str(QUESTIONS)}, "player": player}
    samples, begun = 10, list[str]()

    def reply(body: dict[str, Any]) -> tuple[int, bytes]:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        if not turn:
            begun.append("")
        number, sample = divmod(len(begun) - 1, samples)
        return replied(body, {"role": "assistant", "content": guess(f"{number} {sample}", turn)})

    def answer(text: str, sampling: Sampling) -> str:
        *_, number, sample, turn = sampling.key
        return f"{guess(f'{number} {sample}', turn)}<|im_end|>"

    server = ChatServer(answer=reply, headers={"content-type": "text/event-stream"})
    with server.running():
        theirs = played_by_verifiers(env, server.url, samples)
    episodes = played(env, answer, samples)
    assert [len(episode.trajectories) for episode in episodes] == [1] * 200
    ours = [EnvironmentReward().score(episode).value for episode in episodes]
    assert ours == theirs
    assert len(set(theirs)) >= 5


CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "6*7"}}\n</tool_call><|im_end|>'


def test_a_taskset_with_a_tool_is_played_by_the_harness_of_verifiers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline_uv(tmp_path, monkeypatch)
    folders = (EXAMPLES / "own_code", EXAMPLES / "other_trainers", *filter(None, [os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    env = {"taskset": {"id": "sum_taskset"}, "agent": agent}
    [right, wrong] = played(
        env,
        lambda text, sampling: (
            CALL if "42" not in text else "42<|im_end|>" if sampling.key[-2] == 0 else "41<|im_end|>"
        ),
        samples=2,
    )
    assert [EnvironmentReward().score(episode).value for episode in (right, wrong)] == [1.0, 0.0]
    [trajectory] = right.trajectories
    call, answer = trajectory.actions
    assert (call.kind, call.result, answer.text) == ("call", "42", "42")
    assert "Computes an arithmetic expression" in trajectory.text
