"""Servers join and leave a pool while it is used: no turn is lost or drawn otherwise, and a server that does not fit is
one line."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable
from contextlib import closing, contextmanager
from typing import Any

import httpx
import pytest
from emulator.model_server import free_url
from emulator.served import KINDS, EmulatedServer, emulated_server
from pools import Pools, asked, move, require_same_turns

from sleuth.engines.remote import pool as pool_module
from sleuth.engines.remote import roster as roster_module
from sleuth.engines.remote.pool import PoolEngine
from sleuth.engines.remote.weight_sync import EngineReplica, WeightSync
from sleuth.training.rollout_worker import Background
from sleuth.types import SleuthError

each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(pool_module, "WATCH_SECONDS", 0.02)
    monkeypatch.setattr(roster_module, "RETRY_SECONDS", 0.1)


def members(engine: PoolEngine) -> list[str]:
    return [replica.url for replica in engine._replicas]


def wait_for(done: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def look(engine: PoolEngine, done: Callable[[], bool], seconds: float = 20.0) -> None:
    """The event loop of turns, until `done`."""
    engine._connect()
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@each_kind
def test_servers_join_and_leave_while_turns_are_under_way_and_each_turn_is_drawn_as_by_one(
    servers, pools, learner, kind
):
    first, second = servers(kind, kind, token_seconds=0.02)
    move(learner)
    listed = [first.url]
    engine = pools.open([first], listed=lambda: listed)
    requests = pools.sampled(groups=6, siblings=2, max_tokens=40)
    with closing(Background()) as background:
        turns = [background.submit(engine.complete(*request)) for request in requests[:6]]
        listed.append(second.url)
        wait_for(lambda: second.url in members(engine))
        del listed[0]
        wait_for(lambda: members(engine) == [second.url])
        before = first.fault()
        turns += [background.submit(engine.complete(*request)) for request in requests[6:]]
        written = [turn.result(30) for turn in turns]
    assert first.fault() == before
    assert second.fault() >= 6
    figures = engine.figures()
    assert (figures["turns_redrawn"], figures["servers_reloaded"]) == (0, 0)
    alone = pools.open([first])
    first.fault(token_seconds=0.0)
    require_same_turns(written, asked(alone, requests))


@each_kind
def test_turns_of_a_server_that_leaves_go_on_at_another_with_what_it_had_of_them(servers, pools, kind):
    leaves, stays = servers(kind, kind, token_seconds=0.05)
    listed = [leaves.url, stays.url]
    engine = pools.open([leaves, stays], listed=lambda: listed, max_policy_lag=2)
    requests = pools.sampled(groups=4, siblings=2, max_tokens=40)
    with closing(Background()) as background:
        turns = [background.submit(engine.complete(*request)) for request in requests]
        wait_for(lambda: leaves.engine.running == 4)
        time.sleep(0.5)
        listed.remove(leaves.url)
        wait_for(lambda: not leaves.engine.running, seconds=5)
        written = [turn.result(30) for turn in turns]
    figures = engine.figures()
    assert (figures["turns_redrawn"], figures["turns_resumed"]) == (0, 4)
    assert all(len(turn.tokens) == len(turn.logprobs) and turn.policy_version == 1 for turn in written)
    assert not any(turn.updates for turn in written)
    assert not leaves.engine.paused  # another run may use it
    assert [line for line in pools.lines if "left" in line] == [f"pool: {leaves.url} has left; servers: 1"]


@each_kind
def test_a_server_that_is_listed_while_the_learner_computes_joins_with_the_next_weights(servers, pools, learner, kind):
    first, second = servers(kind, kind)
    listed = [first.url]
    engine = pools.open([first], listed=lambda: listed)
    engine.sleep()  # the learner computes
    listed.append(second.url)
    asyncio.run(look(engine, lambda: bool(engine._joining)))
    move(learner)
    assert members(engine) == [first.url]
    engine.publish(2)
    assert members(engine) == [first.url, second.url]
    assert second.engine.label.startswith("000002-")
    pools.require_learners_turns(engine)
    listed.remove(first.url)
    asyncio.run(look(engine, lambda: members(engine) == [second.url]))


def test_new_addresses_are_joined_when_no_server_of_the_pool_answers(servers, pools):
    [gone, new] = servers("vllm", "vllm")
    listed = [gone.url]
    engine = pools.open([gone], listed=lambda: listed)
    gone.fault(forget=60)
    listed[:] = [new.url]
    pools.require_learners_turns(engine)
    assert members(engine) == [new.url]


# -- what does not fit -------------------------------------------------------------------------------------------------


@contextmanager
def another_vocabulary(pools: Pools, make_model: Any):
    tokenizer = copy.deepcopy(pools.tokenizer)
    tokenizer.add_tokens(["1859"])
    with emulated_server("vllm", make_model(), tokenizer) as server:
        yield server


@contextmanager
def another_model(pools: Pools, make_model: Any):
    with emulated_server("vllm", make_model("llama"), pools.tokenizer) as server:
        yield server


@contextmanager
def stale_weights(pools: Pools, make_model: Any):
    with emulated_server("sglang", make_model(), pools.tokenizer, context=300, stale=True) as server:
        yield server


@contextmanager
def short_context(pools: Pools, make_model: Any):
    with emulated_server("vllm", make_model(), pools.tokenizer, context=64) as server:
        yield server


@contextmanager
def nobody(pools: Pools, make_model: Any):
    yield EmulatedServer(free_url(), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("newcomer", "reason"),
    [
        (another_vocabulary, "its tokenizer is not the checkpoint's"),
        (another_model, "could not load"),
        (stale_weights, "says that it has the weights 000001-.*, and writes with others"),
        (short_context, "takes 64 tokens, and context = 256"),
        (nobody, "does not answer"),
    ],
)
def test_a_server_that_does_not_fit_is_one_line_and_the_run_goes_on_without_it(
    servers, pools, learner, make_model, newcomer, reason
):
    [first] = servers("vllm")
    move(learner)
    listed = [first.url]
    engine = pools.open([first], listed=lambda: listed)
    with newcomer(pools, make_model) as server:
        listed.append(server.url)
        asyncio.run(look(engine, lambda: any("does not join" in line for line in pools.lines)))
        asyncio.run(asyncio.wait_for(look_for(engine, 0.5), 5))  # it is asked again, and the line is not repeated
    [line] = [line for line in pools.lines if "does not join" in line]
    assert line.startswith(f"pool: {server.url}")
    assert reason.partition(".*")[0] in line
    assert reason.rpartition(".*")[2] in line
    assert members(engine) == [first.url]
    pools.require_learners_turns(engine)


async def look_for(engine: PoolEngine, seconds: float) -> None:
    engine._connect()
    await asyncio.sleep(seconds)


@each_kind
def test_a_server_that_joins_with_old_weights_is_given_those_of_the_run(servers, pools, learner, kind):
    first, second = servers(kind, kind)
    listed = [first.url]
    engine = pools.open([first, second])
    move(learner)
    engine = pools.open([first], listed=lambda: listed, published=False)
    engine.publish(2)
    assert second.engine.label.startswith("000001-")
    listed.append(second.url)
    asyncio.run(look(engine, lambda: second.url in members(engine)))
    assert second.engine.label == first.engine.label
    assert httpx.get(f"{second.url}/health").is_success
    pools.require_learners_turns(engine)


def test_a_list_that_cannot_be_read_changes_nothing_and_is_one_line(servers, pools):
    first, second = servers("vllm", "vllm")
    reasons = iter(["servers.txt: No such file or directory"] * 3 + ["servers.txt: names no server"] * 3)

    def listed() -> list[str]:
        if (reason := next(reasons, None)) is not None:
            raise SleuthError(f"engine.urls: {reason}")
        return [second.url]

    engine = pools.open([first], listed=listed)
    asyncio.run(look(engine, lambda: members(engine) == [second.url]))
    stays = [line for line in pools.lines if "stay as they are" in line]
    assert len(stays) == 2
    assert "No such file" in stays[0]
    assert "names no server" in stays[1]


@pytest.mark.parametrize("lag", [0, 2])
def test_a_server_that_leaves_while_it_is_given_weights_ends_no_run(servers, pools, learner, monkeypatch, lag):
    leaves, stays = servers("vllm", "vllm")
    listed = [leaves.url, stays.url]
    engine = pools.open([leaves, stays], listed=lambda: listed, max_policy_lag=lag)
    update = WeightSync.update

    async def updated(sync: WeightSync, replica: EngineReplica) -> str | None:
        if replica.url == leaves.url:
            listed.remove(leaves.url)
            while leaves.url in members(engine):
                await asyncio.sleep(0.01)
            raise SleuthError(f"{leaves.url}: could not load them, as its machine goes down")
        return await update(sync, replica)

    monkeypatch.setattr(WeightSync, "update", updated)
    move(learner)
    engine.publish(2)
    assert members(engine) == [stays.url]
    assert [line for line in pools.lines if leaves.url in line] == [f"pool: {leaves.url} has left; servers: 1"]
    pools.require_learners_turns(engine)
