"""A real vLLM writes what the learner would, takes its weights at every step, and loses nothing when it is killed."""

from __future__ import annotations

import asyncio
import copy
import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import httpx
import pytest
from pools import Pools, asked, move, require_same_turns
from real_vllm import ADAPTED, RealVllm, require_every_episode_once, running

from sleuth.convert.merge import merge_shards
from sleuth.engines.remote.http_client import HttpClient
from sleuth.engines.remote.pool import PoolEngine
from sleuth.engines.remote.published import Published
from sleuth.engines.remote.server import DiscoveredServer, discover_server
from sleuth.engines.remote.vllm import Vllm
from sleuth.learn.master_weights import learner_logprobs
from sleuth.learn.models import load_model
from sleuth.render import decode, find_eos_ids, load_tokenizer
from sleuth.training.rollout_worker import Background
from sleuth.types import Completion, Sampling, Segment, SleuthError

pytestmark = pytest.mark.servers

BASE = Path(__file__).parents[3] / "models" / "tiny-base"
CONTEXT = 512
LORA = ("stage.1.lora={ rank = 8, alpha = 16.0 }", "stage.1.learning_rate=5e-3")
UNSHARED = {"connection": "close"}  # a server that is short of cores may close an idle connection while it is used
LIMITS = {"requests_at_once": 64, "seconds": 60.0, "unavailable_timeout": 300.0}


@pytest.fixture(scope="module")
def vllm(tmp_path_factory) -> Iterator[RealVllm]:
    """It serves an untied copy of the model that is trained, which is tied."""
    folder = tmp_path_factory.mktemp("untied")
    merge_shards(BASE, folder / "model", untie=True)
    yield from running(folder / "model", folder)


@pytest.fixture(scope="module")
def tied_vllm(tmp_path_factory) -> Iterator[RealVllm]:
    yield from running(BASE, tmp_path_factory.mktemp("tied"))


@pytest.fixture(scope="module")
def adapted_vllm(tmp_path_factory) -> Iterator[RealVllm]:
    yield from running(BASE, tmp_path_factory.mktemp("adapted"), ADAPTED)


@pytest.fixture
def pools(tmp_path) -> Pools:
    """For a learner of the base model."""
    model, tokenizer = load_model(str(BASE), dtype="float32", device="cpu")
    return Pools(model, tokenizer, tmp_path / "weights", prompt, context=CONTEXT)


@pytest.fixture
def pool(vllm, pools) -> PoolEngine:
    """A pool that has published version 1."""
    return pools.open([vllm], **LIMITS)


@pytest.fixture
def discovered(vllm, pools) -> DiscoveredServer:
    eos_ids = find_eos_ids(pools.learner.generation_config, pools.tokenizer)
    return discover_server(vllm.url, tokenizer=pools.tokenizer, eos_ids=eos_ids)


@cache
def words() -> list[int]:
    """Tokens of whole characters: after half of one, vLLM 0.32.0 takes the prompt's text for a part of the turn's."""
    tokenizer = load_tokenizer(str(BASE))
    texts = ((token, decode(tokenizer, [token])) for token in range(800))
    return [token for token, text in texts if text.isascii() and text.isprintable()]


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(words(), k=length)


def is_generating(metrics: str) -> bool:
    """Whether requests are running, by the server's `/metrics`."""
    counts = [line for line in metrics.splitlines() if line.startswith("vllm:num_requests_running")]
    return any(float(line.rpartition(" ")[2]) > 0 for line in counts)


def test_what_the_server_can_do_is_found_and_what_training_cannot_use_is_refused(discovered):
    assert (discovered.kind, discovered.version, discovered.context) == ("vLLM", "0.32.0", CONTEXT)
    assert (discovered.logprobs, discovered.lacks) == ("before temperature", ())
    assert discovered.problems(context=CONTEXT, temperature=1.0) == []
    [problem] = discovered.problems(context=CONTEXT, temperature=0.7)
    assert "returns log-probabilities before temperature" in problem
    [problem] = discovered.problems(context=CONTEXT + 1, temperature=1.0)
    assert problem.startswith(f"takes {CONTEXT} tokens, and context = {CONTEXT + 1}")


def test_greedy_turns_with_stops_are_those_of_the_engine_in_this_process(pool, pools):
    whole = pools.written_here(pools.sampled(temperature=0.0))
    stops = tuple(sorted({turn.text[5:8] for turn in whole} - {""})[:4])  # vLLM takes no more
    requests = pools.sampled(temperature=0.0, stops=stops)
    turns = asked(pool, requests)
    assert "stop" in {turn.stop for turn in turns}
    require_same_turns(turns, pools.written_here(requests))


def test_log_probabilities_of_sampled_turns_are_the_learners(pool, pools):
    requests = pools.sampled()
    for (before, _), turn in zip(requests, asked(pool, requests), strict=True):
        expected = learner_logprobs(pools.learner, before, turn.tokens, 1.0)
        assert turn.logprobs == pytest.approx(expected, abs=1e-4)


def test_turns_have_seeds_of_their_own_and_can_be_repeated(pool, pools):
    requests = pools.sampled(groups=1, siblings=16, max_tokens=12)
    first, again = asked(pool, requests), asked(pool, requests)
    assert [turn.tokens for turn in first] == [turn.tokens for turn in again]
    assert len({turn.tokens for turn in first}) > 8


def test_a_turn_ends_where_the_context_does(pool, pools):
    sampling = Sampling(max_tokens=20, temperature=0.0, key=(0, 0, 1, 0, 0, 0))
    requests = [(prompt(CONTEXT - 5), sampling)]
    [turn] = asked(pool, requests)
    assert (len(turn.tokens), turn.stop) == (5, "length")
    require_same_turns([turn], pools.written_here(requests))
    [none_left] = asked(pool, [(prompt(CONTEXT), sampling)])
    assert (none_left.tokens, none_left.stop) == ((), "length")


@pytest.mark.parametrize("served", ["vllm", "tied_vllm"])
def test_new_weights_are_used_by_the_next_turns(request, pools, served):
    """A vLLM for CPUs keeps a packed copy of the output weights of a tied model, which it renews only if they come
    under their name."""
    pool = pools.open([request.getfixturevalue(served)], **LIMITS)
    before = asked(pool, pools.sampled(temperature=0.0))
    for version in (2, 3):
        move(pools.learner)
        pool.publish(version)
    turns = pools.require_learners_turns(pool)
    assert [turn.tokens for turn in turns] != [turn.tokens for turn in before]
    assert {turn.policy_version for turn in turns} == {3}


def test_wrong_weights_under_the_right_name_are_detected(pool, pools, monkeypatch):
    old, load = pool._weight_sync.published, Vllm.load

    async def load_old(api: Vllm, client: HttpClient, published: Published) -> None:
        await load(api, client, old)
        await client.post("/update_weight_version", {"new_version": published.label})

    monkeypatch.setattr(Vllm, "load", load_old)
    move(pools.learner)
    with pytest.raises(SleuthError, match=r"says that it has the weights 000002-.* and writes with others"):
        pool.publish(2)


def test_a_server_that_refused_weights_generates_with_those_it_started_with(vllm, pool, pools, tmp_path):
    """Resumed as it is then, without any, its engine would end."""
    (tmp_path / "cut").mkdir()
    whole = next(pool._weight_sync.published.path.glob("*.safetensors")).read_bytes()
    (tmp_path / "cut" / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    move(pools.learner)
    pool._weight_sync.adopt(pool._weight_sync.write(2))
    object.__setattr__(pool._weight_sync._published, "path", tmp_path / "cut")
    with pytest.raises(SleuthError, match="could not load"):
        asyncio.run(load_published(pool))
    with httpx.Client(trust_env=False, base_url=vllm.url, headers=UNSHARED) as client:
        assert client.get("/weight_info").json()["weight_version"] == "default"
        body = {"model": str(vllm.model), "prompt": prompt(9), "max_tokens": 4}
        assert client.post("/v1/completions", json=body, timeout=30.0).is_success
    pool.publish(3)
    pools.require_learners_turns(pool)


async def load_published(pool: PoolEngine) -> None:
    pool._connect()
    await pool._weight_sync.update(pool._replicas[0])


def test_an_aborted_turn_is_sampled_again_to_the_same_tokens(vllm, pool, pools):
    requests = pools.sampled(groups=16, siblings=1, max_tokens=400)
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


def test_turns_go_on_across_updates_and_each_token_is_that_of_its_version(vllm, pools):
    pool = pools.open([vllm], **LIMITS, max_policy_lag=3)
    requests, models = pools.sampled(groups=8, siblings=2, max_tokens=400), {1: copy.deepcopy(pools.learner)}
    with (
        closing(Background()) as background,
        httpx.Client(trust_env=False, base_url=vllm.url, headers=UNSHARED) as client,
    ):
        turns = [background.submit(pool.complete(*request)) for request in requests]
        for version in (2, 3):
            while not is_generating(client.get("/metrics").text) and not all(turn.done() for turn in turns):
                time.sleep(0.01)
            time.sleep(0.5)
            move(pools.learner)
            models[version] = copy.deepcopy(pools.learner)
            pool.publish(version)
        completions = [turn.result() for turn in turns]
    assert any(turn.updates for turn in completions)
    for (before, _), turn in zip(requests, completions, strict=True):
        names = ("tokens", "text", "logprobs", "policy_version", "updates")
        segment, begin = Segment(author="policy", **{name: getattr(turn, name) for name in names}), 0
        for version, count in segment.version_counts:
            expected = learner_logprobs(models[version], before, turn.tokens, 1.0)[begin : begin + count]
            assert turn.logprobs[begin : begin + count] == pytest.approx(expected, abs=1e-4)
            begin += count
    figures = pool.figures()
    print(figures, [turn.updates for turn in completions])
    assert figures["turns_redrawn"] == 0


def test_a_run_learns_from_its_own_weights_at_every_step(vllm, recipe_file, run, tmp_path):
    run(recipe_file, tmp_path / "run", f"stage.1.engine={{urls=['{vllm.url}']}}")
    steps = require_every_episode_once(tmp_path / "run")
    assert sum(step["servers_reloaded"] for step in steps) == 0


def test_a_run_with_adapters_sends_nothing_else_after_the_first_step(adapted_vllm, recipe_file, run, tmp_path):
    """Whole weights were sent before them, once, and after the run for its evaluation."""
    pytest.importorskip("peft")
    run(recipe_file, tmp_path / "run", f"stage.1.engine={{urls=['{adapted_vllm.url}']}}", *LORA)
    require_every_episode_once(tmp_path / "run")
    sent = [file.name for file in (tmp_path / "run" / "weights").rglob("*.safetensors")]
    assert sorted(sent) == ["adapter_model.safetensors", "model.safetensors"]
    assert "takes no weights as adapters" not in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize(("served", "lora"), [("vllm", ()), ("adapted_vllm", LORA)])
def test_a_killed_server_costs_turns_and_no_episode(request, recipe_file, run, tmp_path, served, lora):
    vllm = request.getfixturevalue(served)
    killing = threading.Thread(target=kill_while_generating, args=(vllm, tmp_path / "run" / "metrics.jsonl"))
    killing.start()
    run(recipe_file, tmp_path / "run", f"stage.1.engine={{urls=['{vllm.url}']}}", *lora)
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
