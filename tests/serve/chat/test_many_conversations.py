"""Many conversations with a real model over real sockets: none is lost, none leaves a slot behind."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
from listening import listening

from sleuth.engines.local.engine import LocalEngine
from sleuth.evaluation.eval_session import open_eval_session
from sleuth.serve.access import LOOPBACK, Access, conversation_limits
from sleuth.serve.agent import Agent, agent_of
from sleuth.serve.chat_app import chat_app

BASE = Path(__file__).parents[3] / "models" / "tiny-base"
SLOTS = 8


@pytest.fixture(scope="module")
def served(towns: Path) -> Iterator[tuple[str, Agent]]:
    """The tiny base, whose first search is opened for it, in an index of towns."""
    session, _ = open_eval_session(str(BASE), [], index=towns, forced_search=True, context=512, slots=SLOTS)
    agent = agent_of(session, "tiny-base", towns)
    with listening(chat_app(agent, conversation_limits(), conversations=SLOTS, access=Access(hosts=LOOPBACK))) as url:
        yield url, agent


def engine_of(agent: Agent) -> LocalEngine:
    assert isinstance(agent.engine, LocalEngine)
    return agent.engine


def body(number: int, **options: Any) -> dict[str, Any]:
    question = f"What lies by Town {number}?"
    return {"messages": [{"role": "user", "content": question}], "seed": number, "temperature": 1.0, **options}


async def chunks(client: httpx.AsyncClient, number: int) -> AsyncGenerator[dict[str, Any], None]:
    async with client.stream("POST", "/v1/chat/completions", json=body(number, stream=True)) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))


def with_client(url: str, use: Any) -> Any:
    async def run() -> Any:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits, trust_env=False) as client:
            return await use(client)

    return asyncio.run(run())


def test_more_conversations_than_slots_are_all_answered_each_with_its_own_answer(served: tuple[str, Agent]) -> None:
    url, _ = served
    count = 3 * SLOTS

    async def whole(client: httpx.AsyncClient, number: int) -> list[dict[str, Any]]:
        return [chunk async for chunk in chunks(client, number)]

    async def all_of_them(client: httpx.AsyncClient) -> tuple[list[Any], list[Any]]:
        streams = await asyncio.gather(*(whole(client, number) for number in range(count)))
        alone = [(await client.post("/v1/chat/completions", json=body(number))).json() for number in range(6)]
        return streams, alone

    streams, alone = with_client(url, all_of_them)
    assert all(told[-1]["sleuth"]["kind"] == "end" for told in streams)
    for told, answer in zip(streams, alone, strict=False):
        thoughts = "".join(chunk["choices"][0]["delta"].get("reasoning_content") or "" for chunk in told)
        assert told[-1]["choices"][0]["finish_reason"] == answer["choices"][0]["finish_reason"]
        assert thoughts == answer["choices"][0]["message"]["reasoning_content"]
        assert told[-1]["sleuth"]["citations"] == answer["sleuth"]["citations"]
    assert any(answer["sleuth"]["searches"] for answer in alone)


def test_a_hundred_disconnects_free_all_slots(served: tuple[str, Agent]) -> None:
    url, agent = served
    rng = random.Random(0)

    async def leave(client: httpx.AsyncClient, number: int, after: int) -> None:
        heard = 0
        async with aclosing(chunks(client, number)) as told:  # the connection is closed with it
            async for _ in told:
                heard += 1
                if heard > after:
                    return

    async def all_of_them(client: httpx.AsyncClient) -> dict[str, Any]:
        await asyncio.gather(*(leave(client, number, rng.randrange(12)) for number in range(100)))
        return (await client.get("/health")).json()

    before = engine_of(agent).tokens_sampled
    with_client(url, all_of_them)
    deadline = time.monotonic() + 10
    while (health := httpx.get(f"{url}/health").json())["conversations"] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (health["conversations"], health["waiting"], engine_of(agent).running) == (0, 0, 0)
    assert engine_of(agent).tokens_sampled > before
    assert httpx.post(f"{url}/v1/chat/completions", json=body(1), timeout=60).status_code == 200


def test_the_server_answers_while_the_model_computes(served: tuple[str, Agent]) -> None:
    url, _ = served

    async def look(client: httpx.AsyncClient) -> tuple[int, list[float]]:
        asking = [
            asyncio.ensure_future(client.post("/v1/chat/completions", json=body(number))) for number in range(2 * SLOTS)
        ]
        seconds: list[float] = []
        while not all(task.done() for task in asking):
            started = time.perf_counter()
            health = (await client.get("/health")).json()
            seconds.append(time.perf_counter() - started)
            assert health["conversations"] <= SLOTS
            await asyncio.sleep(0.01)
        return sum(task.result().status_code == 200 for task in asking), seconds

    answered, seconds = with_client(url, look)
    assert answered == 2 * SLOTS
    assert sorted(seconds)[len(seconds) // 2] < 0.5
