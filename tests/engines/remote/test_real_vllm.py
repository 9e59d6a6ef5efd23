"""A real vLLM writes what the learner would, takes its weights at every step, and loses nothing when it is killed."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import httpx
import pytest
import torch
from real_vllm import RealVllm, require_every_episode_once
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.convert.merge import merge_shards
from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.remote.http_client import HttpClient
from sleuth.engines.remote.pool import PoolEngine, PoolLimits
from sleuth.engines.remote.published import Published
from sleuth.engines.remote.server import DiscoveredServer, discover_server
from sleuth.engines.remote.vllm import Vllm
from sleuth.engines.remote.weight_sync import learner_logprobs
from sleuth.learn.models import load_model
from sleuth.render import decode, find_eos_ids, load_tokenizer
from sleuth.types import Completion, Sampling, SleuthError

pytestmark = pytest.mark.servers

BASE = Path(__file__).parents[3] / "models" / "tiny-base"
CONTEXT = 512
UNSHARED = {"connection": "close"}  # a server that is short of cores may close an idle connection while it is used
Requests = Sequence[tuple[list[int], Sampling]]


def running(model: Path, folder: Path) -> Iterator[RealVllm]:
    server = RealVllm(model, folder / "vllm.log", context=CONTEXT)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def vllm(tmp_path_factory) -> Iterator[RealVllm]:
    """It serves an untied copy of the model that is trained, which is tied."""
    folder = tmp_path_factory.mktemp("untied")
    merge_shards(BASE, folder / "model", untie=True)
    yield from running(folder / "model", folder)


@pytest.fixture(scope="module")
def tied_vllm(tmp_path_factory) -> Iterator[RealVllm]:
    yield from running(BASE, tmp_path_factory.mktemp("tied"))


@pytest.fixture
def base() -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The learner and its tokenizer."""
    return load_model(str(BASE), dtype="float32", device="cpu")


@pytest.fixture
def learner(base) -> PreTrainedModel:
    return base[0]


@pytest.fixture
def discovered(vllm, base) -> DiscoveredServer:
    model, tokenizer = base
    return discover_server(vllm.url, tokenizer=tokenizer, eos_ids=find_eos_ids(model.generation_config, tokenizer))


@pytest.fixture
def pool(vllm, base, tmp_path) -> PoolEngine:
    """A pool that has published version 1."""
    return pool_of(vllm, base, tmp_path)


def pool_of(vllm: RealVllm, base, folder: Path) -> PoolEngine:
    model, tokenizer = base
    eos_ids = find_eos_ids(model.generation_config, tokenizer)
    engine = PoolEngine(
        [discover_server(vllm.url, tokenizer=tokenizer, eos_ids=eos_ids)],
        model,
        tokenizer,
        eos_ids=eos_ids,
        context=CONTEXT,
        temperature=1.0,
        limits=PoolLimits(requests_at_once=64, seconds=60.0, unavailable_timeout=300.0, sleeps=False),
        shared=folder / "weights",
        log=lambda line: None,
    )
    engine.publish(1)
    return engine


def move(model: PreTrainedModel) -> None:
    """Changes all weights, as an update does."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.05)


@cache
def words() -> list[int]:
    """Tokens of whole characters: after half of one, vLLM 0.32.0 takes the prompt's text for a part of the turn's."""
    tokenizer = load_tokenizer(str(BASE))
    texts = ((token, decode(tokenizer, [token])) for token in range(800))
    return [token for token, text in texts if text.isascii() and text.isprintable()]


def prompts(count: int, length: int = 9) -> list[list[int]]:
    return [random.Random(seed).choices(words(), k=length) for seed in range(count)]


def sampled(count: int = 16, **settings: object) -> Requests:
    return [
        (prompt, Sampling(**{"max_tokens": 24, "key": (0, 0, 1, at, 0, 0)} | settings))
        for at, prompt in enumerate(prompts(count))
    ]


def asked(engine: PoolEngine | LocalEngine, requests: Requests) -> list[Completion]:
    async def ask() -> list[Completion]:
        return list(await asyncio.gather(*(engine.complete(tokens, sampling) for tokens, sampling in requests)))

    return asyncio.run(ask())


def written_here(base, requests: Requests) -> list[Completion]:
    model, tokenizer = base
    return asked(LocalEngine(model, tokenizer, slots=16, context=CONTEXT), requests)


def are_equal(turns: Sequence[Completion], others: Sequence[Completion]) -> None:
    for one, other in zip(turns, others, strict=True):
        assert (one.tokens, one.text, one.stop) == (other.tokens, other.text, other.stop)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def is_generating(metrics: str) -> bool:
    """Whether requests are running, by the server's `/metrics`."""
    counts = [line for line in metrics.splitlines() if line.startswith("vllm:num_requests_running")]
    return any(float(line.rpartition(" ")[2]) > 0 for line in counts)


def test_what_the_server_can_do_is_found(discovered):
    assert (discovered.kind, discovered.version, discovered.context) == ("vLLM", "0.32.0", CONTEXT)
    assert (discovered.logprobs, discovered.lacks) == ("before temperature", ())


def test_what_training_cannot_use_is_refused(discovered):
    assert discovered.problems(context=CONTEXT, temperature=1.0) == []
    [problem] = discovered.problems(context=CONTEXT, temperature=0.7)
    assert "returns log-probabilities before temperature" in problem
    [problem] = discovered.problems(context=CONTEXT + 1, temperature=1.0)
    assert problem.startswith(f"takes {CONTEXT} tokens, and context = {CONTEXT + 1}")


def test_greedy_turns_with_stops_are_those_of_the_engine_in_this_process(pool, base):
    whole = written_here(base, sampled(temperature=0.0))
    stops = tuple(sorted({turn.text[5:8] for turn in whole} - {""})[:4])  # vLLM takes no more
    turns = asked(pool, sampled(temperature=0.0, stops=stops))
    assert "stop" in {turn.stop for turn in turns}
    are_equal(turns, written_here(base, sampled(temperature=0.0, stops=stops)))


def test_log_probabilities_of_sampled_turns_are_the_learners(pool, learner):
    requests = sampled()
    for (prompt, _), turn in zip(requests, asked(pool, requests), strict=True):
        assert turn.logprobs == pytest.approx(learner_logprobs(learner, prompt, turn.tokens, 1.0), abs=1e-4)


def test_turns_have_seeds_of_their_own_and_can_be_repeated(pool):
    [prompt] = prompts(1)
    requests = [(prompt, Sampling(max_tokens=12, key=(0, 0, 1, 0, sample, 0))) for sample in range(16)]
    first, again = asked(pool, requests), asked(pool, requests)
    assert [turn.tokens for turn in first] == [turn.tokens for turn in again]
    assert len({turn.tokens for turn in first}) > 8


def test_a_turn_ends_where_the_context_does(pool, base):
    [prompt] = prompts(1, CONTEXT - 5)
    requests = [(prompt, Sampling(max_tokens=20, temperature=0.0, key=(0, 0, 1, 0, 0, 0)))]
    [turn] = asked(pool, requests)
    assert (len(turn.tokens), turn.stop) == (5, "length")
    are_equal([turn], written_here(base, requests))
    [none_left] = asked(pool, [(prompts(1, CONTEXT)[0], requests[0][1])])
    assert (none_left.tokens, none_left.stop) == ((), "length")


def test_new_weights_are_used_by_the_next_turns(pool, base):
    requests = sampled(temperature=0.0)
    before = asked(pool, requests)
    for version in (2, 3):
        move(base[0])
        pool.publish(version)
    turns = asked(pool, requests)
    assert [turn.tokens for turn in turns] != [turn.tokens for turn in before]
    assert {turn.policy_version for turn in turns} == {3}
    are_equal(turns, written_here(base, requests))


def test_wrong_weights_under_the_right_name_are_detected(pool, learner, monkeypatch):
    old, load = pool._weight_sync.published, Vllm.load

    async def load_old(api: Vllm, client: HttpClient, published: Published) -> None:
        await load(api, client, old)
        await client.post("/update_weight_version", {"new_version": published.label})

    monkeypatch.setattr(Vllm, "load", load_old)
    move(learner)
    with pytest.raises(SleuthError, match=r"says that it has the weights 000002-.* and writes with others"):
        pool.publish(2)


def test_a_server_that_refused_weights_generates_with_those_it_started_with(vllm, pool, base, tmp_path):
    """Resumed as it is then, without any, its engine would end."""
    (tmp_path / "cut").mkdir()
    whole = next(pool._weight_sync.published.path.glob("*.safetensors")).read_bytes()
    (tmp_path / "cut" / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    move(base[0])
    pool._weight_sync.write(2)
    object.__setattr__(pool._weight_sync._published, "path", tmp_path / "cut")
    with pytest.raises(SleuthError, match="could not load"):
        asyncio.run(load_published(pool))
    with httpx.Client(trust_env=False, base_url=vllm.url, headers=UNSHARED) as client:
        assert client.get("/weight_info").json()["weight_version"] == "default"
        body = {"model": str(vllm.model), "prompt": prompts(1)[0], "max_tokens": 4}
        assert client.post("/v1/completions", json=body, timeout=30.0).is_success
    pool.publish(3)
    are_equal(asked(pool, sampled(temperature=0.0)), written_here(base, sampled(temperature=0.0)))


async def load_published(pool: PoolEngine) -> None:
    pool._connect()
    await pool._weight_sync.update(pool._replicas[0])


def test_an_aborted_turn_is_sampled_again_to_the_same_tokens(vllm, pool):
    requests = sampled(max_tokens=400)
    undisturbed = asked(pool, requests)

    async def ask() -> list[Completion]:
        turns = [asyncio.create_task(pool.complete(tokens, sampling)) for tokens, sampling in requests]
        async with httpx.AsyncClient(trust_env=False, base_url=vllm.url, headers=UNSHARED) as client:
            while not is_generating((await client.get("/metrics")).text):
                await asyncio.sleep(0.01)
            (await client.post("/pause", params={"mode": "abort"})).raise_for_status()
            (await client.post("/resume")).raise_for_status()
        return list(await asyncio.gather(*turns))

    turns = asyncio.run(ask())
    assert pool.figures()["turns_redrawn"] > 0
    assert [turn.tokens for turn in turns] == [turn.tokens for turn in undisturbed]


def test_a_tied_model_takes_new_weights(tied_vllm, base, tmp_path):
    """A vLLM for CPUs keeps a packed copy of the output weights, which it renews only if they come under their name."""
    pool, requests = pool_of(tied_vllm, base, tmp_path), sampled(temperature=0.0)
    for version in (2, 3):
        move(base[0])
        pool.publish(version)
    are_equal(asked(pool, requests), written_here(base, requests))


def test_a_run_learns_from_its_own_weights_at_every_step(vllm, recipe_file, run, tmp_path):
    run(recipe_file, tmp_path / "run", f"stage.1.engine={{urls=['{vllm.url}']}}")
    steps = require_every_episode_once(tmp_path / "run")
    assert sum(step["servers_reloaded"] for step in steps) == 0


def test_a_killed_server_costs_turns_and_no_episode(vllm, recipe_file, run, tmp_path):
    killing = threading.Thread(target=kill_while_generating, args=(vllm, tmp_path / "run" / "metrics.jsonl"))
    killing.start()
    run(recipe_file, tmp_path / "run", f"stage.1.engine={{urls=['{vllm.url}']}}")
    killing.join()
    steps = require_every_episode_once(tmp_path / "run")
    assert sum(step["turns_redrawn"] for step in steps) > 0
    assert sum(step["servers_reloaded"] for step in steps) > 0


def kill_while_generating(vllm: RealVllm, metrics: Path) -> None:
    """Kills the server in the second step, while it generates, and starts it again."""
    deadline = time.monotonic() + 300
    while not (metrics.exists() and '"step": 1' in metrics.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    with httpx.Client(trust_env=False, base_url=vllm.url, headers=UNSHARED) as client:
        while not is_generating(client.get("/metrics").text) and time.monotonic() < deadline:
            time.sleep(0.01)
    vllm.kill()
    vllm.start()
