"""A pool of servers writes what the learner would, whatever befalls them: nothing stale, lost or counted twice."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import httpx
import pytest
import torch
from emulator.engine import EmulatedEngine
from emulator.model_server import free_url
from emulator.served import KINDS, EmulatedServer, emulated_server
from safetensors.torch import load_file
from transformers import PreTrainedModel

from sleuth.engines.launch import SGLANG_RESERVED
from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.remote import pool as pool_module
from sleuth.engines.remote import replica as replica_module
from sleuth.engines.remote.http_client import HttpClient, LostResponseError, ServerFailedError, UnavailableError
from sleuth.engines.remote.pool import PoolEngine, PoolLimits
from sleuth.engines.remote.replica import EngineReplica
from sleuth.engines.remote.server import discover_server, discover_servers
from sleuth.engines.remote.weight_sync import WeightsDifferError, learner_logprobs
from sleuth.types import Completion, Sampling, SleuthError

CONTEXT = 256
ENOUGH = {"vllm": CONTEXT, "sglang": CONTEXT + SGLANG_RESERVED}
Requests = Sequence[tuple[list[int], Sampling]]


@pytest.fixture
def learner(make_model: Callable[..., PreTrainedModel]) -> PreTrainedModel:
    return make_model()


@contextmanager
def pool_of(
    servers: Sequence[EmulatedServer],
    learner: PreTrainedModel,
    tokenizer: object,
    shared: Path,
    *,
    temperature: float = 1.0,
    seconds: float = 30.0,
    unavailable_timeout: float = 30.0,
    at_once: int = 16,
    sleeps: bool = False,
    published: bool = True,
) -> Iterator[PoolEngine]:
    """A pool that has published version 1 unless told otherwise; what it says is in its `said`."""
    said: list[str] = []
    eos_ids = servers[0].engine.eos_ids
    members = [discover_server(server.url, tokenizer=tokenizer, eos_ids=eos_ids) for server in servers]
    limits = PoolLimits(
        requests_at_once=at_once, seconds=seconds, unavailable_timeout=unavailable_timeout, sleeps=sleeps
    )
    engine = PoolEngine(
        members,
        learner,
        tokenizer,
        eos_ids=eos_ids,
        context=CONTEXT,
        temperature=temperature,
        limits=limits,
        shared=shared,
        log=said.append,
    )
    engine.said = said  # type: ignore[attr-defined]
    if published:
        engine.publish(1)
    yield engine


@pytest.fixture
def servers(
    make_model: Callable[..., PreTrainedModel], tokenizer: object
) -> Iterator[Callable[..., list[EmulatedServer]]]:
    """`servers("vllm", "sglang", latency=0.1)`: each with a model of its own."""
    with ExitStack() as open_:
        yield lambda *kinds, **how: [
            open_.enter_context(emulated_server(kind, make_model(), tokenizer, context=ENOUGH[kind], **how))
            for kind in kinds
        ]


def asked(engine: PoolEngine | LocalEngine, requests: Requests) -> list[Completion]:
    async def ask() -> list[Completion]:
        return list(await asyncio.gather(*(engine.complete(tokens, sampling) for tokens, sampling in requests)))

    return asyncio.run(ask())


def sampled(words: Callable[..., list[int]], *, groups: int = 4, siblings: int = 4, **how: object) -> Requests:
    """A turn of every sibling of every group."""
    settings = {"max_tokens": 24} | how
    return [
        (words(9, group), Sampling(key=(0, 0, 1, group, sample, 0), **settings))
        for group in range(groups)
        for sample in range(siblings)
    ]


@contextmanager
def away(replica: EngineReplica) -> Iterator[EngineReplica]:
    """Nobody is where the pool looks for this server."""
    server = replica.server
    url = server.url
    object.__setattr__(server, "url", free_url())
    yield replica
    object.__setattr__(server, "url", url)


def moved(model: PreTrainedModel) -> None:
    """The learner has learned something."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.05)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_turns_are_those_of_the_engine_in_this_process(
    servers, learner, tokenizer, words, tmp_path, kind
) -> None:
    moved(learner)  # the servers begin with other weights than the learner's
    requests = sampled(words, temperature=0.0)
    with pool_of(servers(kind, kind), learner, tokenizer, tmp_path) as engine:
        written = asked(engine, requests)
    here = asked(LocalEngine(learner, tokenizer, slots=8, context=CONTEXT), requests)
    assert [(turn.tokens, turn.text, turn.stop) for turn in written] == [
        (turn.tokens, turn.text, turn.stop) for turn in here
    ]
    assert {turn.policy_version for turn in written} == {1}


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_over_several_turns_are_the_learners(
    servers, learner, tokenizer, words, tmp_path, kind, temperature
) -> None:
    moved(learner)
    with pool_of(servers(kind, raw=False), learner, tokenizer, tmp_path, temperature=temperature) as engine:
        tokens, turns = words(9), []
        for turn in range(4):  # an answer is read before each turn but the first
            key = (0, 0, 1, 0, 0, turn)
            [written] = asked(engine, [(tokens, Sampling(max_tokens=12, temperature=temperature, key=key))])
            turns.append((list(tokens), written))
            tokens = [*tokens, *written.tokens, *words(7, turn)]
    for before, written in turns:
        ours = learner_logprobs(learner, before, written.tokens, temperature)
        assert written.logprobs == pytest.approx(ours, abs=1e-4)


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_whether_log_probabilities_are_scaled_is_probed(servers, learner, tokenizer, tmp_path, kind, raw) -> None:
    [server] = servers(kind, raw=raw)
    discovered = discover_server(server.url, tokenizer=tokenizer, eos_ids=server.engine.eos_ids)
    assert discovered.logprobs == ("before temperature" if raw else "after temperature")
    problems = discovered.problems(context=CONTEXT, temperature=0.7)
    assert [problem.partition(",")[0] for problem in problems] == (
        ["returns log-probabilities before temperature"] if raw else []
    )
    assert discovered.problems(context=CONTEXT, temperature=1.0) == []


@pytest.mark.parametrize(
    ("kind", "left", "said"),
    [("vllm", "/pause", "left paused"), ("vllm", "/sleep", "left asleep"), ("sglang", "/pause_generation", "")],
)
def test_a_server_that_a_killed_run_left_paused_is_woken(servers, tokenizer, kind, left, said) -> None:
    [server] = servers(kind)
    httpx.post(server.url + left, json={}).raise_for_status()
    told: list[str] = []
    asked = {"tokenizer": tokenizer, "eos_ids": server.engine.eos_ids, "context": CONTEXT, "temperature": 1.0}
    with patch("sleuth.engines.remote.server.PROBE_SECONDS", 5.0):
        [found] = discover_servers([server.url], log=told.append, **asked)
    assert found.url == server.url
    assert said in told[0]


def test_a_server_that_hangs_before_a_run_is_said_at_once(servers, tokenizer, monkeypatch) -> None:
    monkeypatch.setattr("sleuth.engines.remote.server.STATE_SECONDS", 0.2)
    monkeypatch.setattr("sleuth.engines.remote.server.PROBE_SECONDS", 0.5)
    told: list[str] = []
    asked = {"tokenizer": tokenizer, "eos_ids": (), "context": CONTEXT, "temperature": 1.0}
    with deaf() as url, pytest.raises(SleuthError, match=r"gave no answer within 0\.5 seconds"):
        discover_servers([url], log=told.append, **asked)
    assert told == [f"pool: {url} accepts connections and answers nothing; it is given 0.5 s more"]


def test_siblings_stay_together_and_groups_are_spread(servers, learner, tokenizer, words, tmp_path) -> None:
    pair = servers("vllm", "sglang")
    with pool_of(pair, learner, tokenizer, tmp_path) as engine:
        before = [server.fault() for server in pair]
        asked(engine, sampled(words, groups=6, siblings=5))
        counts = [server.fault() - count for server, count in zip(pair, before, strict=True)]
    assert counts == [15, 15]


def test_concurrent_turns_at_a_server_stay_within_the_limit(servers, learner, tokenizer, words, tmp_path) -> None:
    [server] = servers("sglang", latency=0.02)
    most = 0
    with pool_of([server], learner, tokenizer, tmp_path, at_once=3) as engine:
        write = server.engine.write

        async def watched(*arguments: object) -> object:
            nonlocal most
            most = max(most, server.engine.running + 1)
            return await write(*arguments)

        server.engine.write = watched
        asked(engine, sampled(words))
    assert most == 3


@pytest.mark.parametrize("fault", [{"error_every": 3}, {"cut_every": 3}, {"hang_every": 5}])
@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_that_a_server_does_not_finish_is_sampled_again_with_its_seed(
    servers, learner, tokenizer, words, tmp_path, kind, fault
) -> None:
    requests = sampled(words, max_tokens=8)
    [sound] = servers(kind)
    with pool_of([sound], learner, tokenizer, tmp_path / "sound") as engine:
        expected = asked(engine, requests)
    pair = servers(kind, kind)
    with pool_of(pair, learner, tokenizer, tmp_path / "troubled", seconds=1.0) as engine:
        pair[0].fault(**fault)
        written = asked(engine, requests)
        redrawn = engine.figures()["turns_redrawn"]
    assert [turn.tokens for turn in written] == [turn.tokens for turn in expected]
    assert redrawn > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_restarted_server_gets_the_weights_before_it_generates(
    servers, learner, tokenizer, words, tmp_path, kind
) -> None:
    moved(learner)
    [server] = servers(kind)
    with pool_of([server], learner, tokenizer, tmp_path) as engine:
        server.fault(forget=0.3)
        written = asked(engine, sampled(words, temperature=0.0))
        figures = engine.figures()
    here = asked(LocalEngine(learner, tokenizer, slots=8, context=CONTEXT), sampled(words, temperature=0.0))
    assert [turn.tokens for turn in written] == [turn.tokens for turn in here]
    assert figures["servers_reloaded"] == 1
    assert "came back with the weights 'default' and was given '000001-" in engine.said[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_an_unnoticed_restart_is_detected_by_the_first_completion(
    servers, learner, tokenizer, words, tmp_path, monkeypatch, kind
) -> None:
    moved(learner)
    [server] = servers(kind)
    requests = sampled(words, groups=1, siblings=1, temperature=0.0)
    with pool_of([server], learner, tokenizer, tmp_path) as engine:
        monkeypatch.setattr(EngineReplica, "is_same_process", property(lambda replica: not replica.may_have_restarted))
        server.fault(forget=0)
        before = server.fault()
        [written] = asked(engine, requests)
        assert server.fault() - before == 2
        figures = engine.figures()
    [here] = asked(LocalEngine(learner, tokenizer, slots=8, context=CONTEXT), requests)
    assert (written.tokens, figures["turns_redrawn"], figures["servers_reloaded"]) == (here.tokens, 1, 1)


@contextmanager
def meddling(server: EmulatedServer) -> Iterator[None]:
    """While a completion is on its way, somebody else names the weights."""
    server.fault(latency=0.6)

    def meddle() -> None:
        time.sleep(0.2)
        httpx.post(f"{server.url}/update_weight_version", json={"new_version": "theirs"})

    meddler = threading.Thread(target=meddle)
    meddler.start()
    yield
    meddler.join()


def test_a_completion_that_names_other_weights_ends_the_run_with_both_names(
    servers, learner, tokenizer, words, tmp_path
) -> None:
    [server] = servers("sglang")
    with (
        pool_of([server], learner, tokenizer, tmp_path) as engine,
        meddling(server),
        pytest.raises(WeightsDifferError, match=r"wrote with the weights 'theirs', .* is at '000001-[0-9a-f]{12}'"),
    ):
        asked(engine, sampled(words, groups=1, siblings=1))


def test_a_completion_by_unknown_weights_is_discarded(servers, learner, tokenizer, words, tmp_path) -> None:
    [server] = servers("vllm")
    with pool_of([server], learner, tokenizer, tmp_path) as engine:
        with meddling(server):
            asked(engine, sampled(words, groups=1, siblings=1))
        figures = engine.figures()
    assert (figures["turns_redrawn"], figures["servers_reloaded"]) == (1, 1)


def test_a_server_that_loses_its_weights_again_and_again_ends_the_run(
    servers, learner, tokenizer, words, tmp_path, monkeypatch
) -> None:
    [server] = servers("vllm")
    with pool_of([server], learner, tokenizer, tmp_path) as engine:
        httpx.post(f"{server.url}/update_weight_version", json={"new_version": "theirs"})

        async def in_vain(self: object, line: object, published: object) -> None:
            """Another run gives it its own at once."""

        monkeypatch.setattr("sleuth.engines.remote.vllm.Vllm.load", in_vain)
        with pytest.raises(WeightsDifferError, match=r"would write with the weights 'theirs', .* is at '000001-"):
            asked(engine, sampled(words, groups=1, siblings=1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_only_claims_to_have_loaded_weights_is_detected(
    servers, learner, tokenizer, tmp_path, kind
) -> None:
    [server] = servers(kind)
    with pool_of([server], learner, tokenizer, tmp_path) as engine:
        server.fault(stale=True)
        moved(learner)
        with pytest.raises(SleuthError, match=r"says that it has the weights 000002-.* and writes with others"):
            engine.publish(2)


def test_a_vllm_that_keeps_old_weights_of_a_tied_model_is_told_what_to_serve(
    servers, make_model, tokenizer, tmp_path
) -> None:
    [vllm, sglang] = servers("vllm", "sglang")
    for server, hinted in ((vllm, True), (sglang, False)):
        tied = make_model(tied=True)
        with pool_of([server], tied, tokenizer, tmp_path / str(hinted), published=False) as engine:
            server.fault(stale=True)
            with pytest.raises(SleuthError, match=r"writes with others.*; nothing of it was trained on") as caught:
                engine.publish(1)
        assert (
            "serve an untied copy instead, made by sleuth merge MODEL MODEL-untied --untie" in str(caught.value)
        ) is (hinted)
        assert "\n" not in str(caught.value)


def test_servers_of_an_untied_copy_take_the_weights_of_a_tied_model(
    servers, make_model, tokenizer, words, tmp_path
) -> None:
    tied = make_model(tied=True)
    moved(tied)
    requests = sampled(words, temperature=0.0)
    with pool_of(servers("vllm", "sglang"), tied, tokenizer, tmp_path) as engine:
        assert "lm_head.weight" in load_file(engine._weight_sync.published.path / "model.safetensors")
        written = asked(engine, requests)
    here = asked(LocalEngine(tied, tokenizer, slots=8, context=CONTEXT), requests)
    assert [turn.tokens for turn in written] == [turn.tokens for turn in here]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("vllm", "/reset_prefix_cache says success: false"), ("sglang", "/flush_cache refused with 400")],
)
def test_a_server_that_keeps_its_prefix_cache_is_given_the_weights_again(
    servers, learner, tokenizer, words, tmp_path, monkeypatch, kind, reason
) -> None:
    """vLLM says so with status 200, while blocks of its cache are in use."""
    flush, kept = EmulatedEngine.flush, []

    async def busy_once(engine: EmulatedEngine) -> bool:
        kept.append(engine.label)
        return len(kept) > 1 and await flush(engine)

    [server] = servers(kind)
    with pool_of([server], learner, tokenizer, tmp_path) as engine:
        moved(learner)
        monkeypatch.setattr(EmulatedEngine, "flush", busy_once)
        engine.publish(2)
        assert "without new weights: http://127.0.0.1" in engine.said[-1]
        assert reason in engine.said[-1]
        written = asked(engine, sampled(words, temperature=0.0))
        assert engine.figures()["servers_reloaded"] == 1
    assert len(kept) == 2
    here = asked(LocalEngine(learner, tokenizer, slots=8, context=CONTEXT), sampled(words, temperature=0.0))
    assert [turn.tokens for turn in written] == [turn.tokens for turn in here]


def test_a_server_that_is_down_when_weights_go_out_takes_them_when_it_is_back(
    servers, learner, tokenizer, words, tmp_path
) -> None:
    pair = servers("vllm", "sglang")
    with pool_of(pair, learner, tokenizer, tmp_path) as engine:
        with away(engine._replicas[0]):
            moved(learner)
            engine.publish(2)
            assert "without new weights: http://127.0.0.1" in engine.said[-1]
        written = asked(engine, sampled(words, temperature=0.0))
        assert engine.figures()["servers_reloaded"] == 1
    here = asked(LocalEngine(learner, tokenizer, slots=8, context=CONTEXT), sampled(words, temperature=0.0))
    assert [turn.tokens for turn in written] == [turn.tokens for turn in here]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sleeps", [False, True])
def test_an_interrupted_weight_load_is_repeated(
    servers, learner, tokenizer, words, tmp_path, monkeypatch, kind, sleeps
) -> None:
    """It has their label, and may be paused, or half asleep: it would never write."""
    last = {"vllm": "/wake_up" if sleeps else "/resume", "sglang": "/resume_memory_occupation"}
    last["sglang"] = last["sglang"] if sleeps else "/continue_generation"
    post, lost = HttpClient.post, []

    async def broken(line: HttpClient, path: str, *arguments: object, **how: object) -> object:
        """The server is never told the last of it, the first time."""
        waking = "weights" not in str([arguments, how])
        if path == last[kind] and waking and not lost:
            lost.append(path)
            raise LostResponseError("broke off")
        return await post(line, path, *arguments, **how)

    [server] = servers(kind)
    with pool_of([server], learner, tokenizer, tmp_path, sleeps=sleeps, seconds=5.0) as engine:
        engine.sleep()
        moved(learner)
        monkeypatch.setattr(HttpClient, "post", broken)
        engine.publish(2)
        assert "without new weights" in engine.said[-1]
        started = time.monotonic()
        written = asked(engine, sampled(words, temperature=0.0))
    assert (lost, time.monotonic() - started < 5.0) == ([last[kind]], True)
    here = asked(LocalEngine(learner, tokenizer, slots=8, context=CONTEXT), sampled(words, temperature=0.0))
    assert [turn.tokens for turn in written] == [turn.tokens for turn in here]


def test_a_vllm_whose_engine_dies_while_it_loads_gets_the_weights_when_it_is_back(
    servers, learner, tokenizer, words, tmp_path, monkeypatch
) -> None:
    """It answers the load with 500, as for weights that it cannot read."""
    post = HttpClient.post
    [server] = servers("vllm")

    async def dying(client: HttpClient, path: str, *arguments: object, **how: object) -> object:
        if path == "/collective_rpc":
            monkeypatch.setattr(HttpClient, "post", post)
            server.fault(forget=1.0)
            raise ServerFailedError("refused with 500: EngineCore encountered an issue.")
        return await post(client, path, *arguments, **how)

    with pool_of([server], learner, tokenizer, tmp_path) as engine:
        moved(learner)
        monkeypatch.setattr(HttpClient, "post", dying)
        engine.publish(2)
        assert "without new weights" in engine.said[-1]
        written = asked(engine, sampled(words, temperature=0.0))
        assert engine.figures()["servers_reloaded"] == 1
    here = asked(LocalEngine(learner, tokenizer, slots=8, context=CONTEXT), sampled(words, temperature=0.0))
    assert [turn.tokens for turn in written] == [turn.tokens for turn in here]


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_during_a_weight_load_is_sampled_again(servers, learner, tokenizer, words, tmp_path, kind) -> None:
    """What was asked of it afterwards says nothing of what wrote."""
    [server] = servers(kind)
    with pool_of([server], learner, tokenizer, tmp_path) as engine:
        server.fault(latency=0.3)

        async def ask() -> None:
            turn = asyncio.create_task(engine.complete(words(9), Sampling(max_tokens=8, key=(0, 0, 1, 0, 0, 0))))
            await asyncio.sleep(0.1)
            engine._replicas[0].loads += 1
            await turn

        asyncio.run(ask())
        assert engine.figures()["turns_redrawn"] == 1


def test_a_refused_turn_is_retried_with_growing_pauses(
    servers, learner, tokenizer, words, tmp_path, monkeypatch
) -> None:
    """While others of the pool are answered, so that nobody takes the server for gone."""
    [server] = servers("sglang")
    post, away = HttpClient.post, []

    async def full(line: HttpClient, path: str, body: dict | None = None, **how: object) -> object:
        if path == "/generate" and body["input_ids"] == words(9, 0) and len(away) < 6:
            away.append(time.monotonic())
            raise UnavailableError("refused with 429: the queue is full")
        return await post(line, path, body, **how)

    with pool_of([server], learner, tokenizer, tmp_path, at_once=2) as engine:
        monkeypatch.setattr(HttpClient, "post", full)
        asked(engine, sampled(words, groups=30, siblings=1))
        assert engine.figures()["turns_redrawn"] == 0
    assert len(away) == 6
    assert away[-1] - away[0] > 0.05 + 0.1 + 0.2 + 0.4


def test_a_server_that_took_new_weights_is_used_at_once(servers, learner, tokenizer, words, tmp_path) -> None:
    pair = servers("vllm", "sglang")
    with pool_of(pair, learner, tokenizer, tmp_path) as engine:
        with away(engine._replicas[0]) as replica:
            for version in range(2, 6):
                engine.publish(version)
            assert replica.health.open
        engine.publish(6)
        before = pair[0].fault()
        asked(engine, sampled(words, groups=2))
        assert pair[0].fault() - before == 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_slept_has_the_new_weights_when_it_wakes(
    servers, learner, tokenizer, words, tmp_path, kind
) -> None:
    [server] = servers(kind)
    with pool_of([server], learner, tokenizer, tmp_path, sleeps=True) as engine:
        asked(engine, sampled(words))
        engine.sleep()
        assert server.engine.asleep == {"weights", "kv_cache"}
        moved(learner)
        engine.publish(2)
        assert server.engine.asleep == set()
        written = asked(engine, sampled(words, temperature=0.0))
    here = asked(LocalEngine(learner, tokenizer, slots=8, context=CONTEXT), sampled(words, temperature=0.0))
    assert [turn.tokens for turn in written] == [turn.tokens for turn in here]


@pytest.mark.parametrize(("kind", "label"), [("vllm", "default"), ("sglang", "000001-")])
def test_weights_that_a_server_cannot_read_are_one_line_and_leave_it_able_to_generate(
    servers, learner, tokenizer, tmp_path, monkeypatch, kind, label
) -> None:
    """A vLLM, which has none after a refusal, with those that it was started with; an SGLang with those before."""
    moved(learner)
    [server] = servers(kind)
    initial = {name: weight.clone() for name, weight in server.engine._model.state_dict().items()}

    def blind(model: PreTrainedModel, folder: Path) -> None:
        raise SleuthError(f"{folder}: holds no .safetensors file")

    with pool_of([server], learner, tokenizer, tmp_path) as engine:
        monkeypatch.setattr("emulator.engine.load_published", blind)
        with pytest.raises(SleuthError, match=r"could not load .* every server must see the folder engine.weights"):
            engine.publish(2)
    assert not server.engine.paused
    assert server.engine.label.startswith(label)
    held = server.engine._model.state_dict()
    assert all(torch.equal(held[name], weight) for name, weight in initial.items()) == (label == "default")


def test_an_unavailable_pool_fails_with_one_line_after_the_timeout(
    servers, learner, tokenizer, words, tmp_path
) -> None:
    with pool_of(servers("sglang"), learner, tokenizer, tmp_path, unavailable_timeout=1.0) as engine:
        object.__setattr__(engine._replicas[0].server, "url", free_url())
        started = time.monotonic()
        with pytest.raises(SleuthError, match=r"no server of the pool answered for 1 seconds \(http.*does not answer"):
            asked(engine, sampled(words, groups=1))
    assert time.monotonic() - started < 8


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds become tenths; what a pool says is due within ten."""
    worst = pool_module.SILENT_SECONDS + replica_module.PING_SECONDS + pool_module.WATCH_SECONDS
    assert worst < 10
    for module, name in (
        *((pool_module, name) for name in ("SILENT_SECONDS", "SAID_SECONDS", "PING_AFTER", "WATCH_SECONDS")),
        (replica_module, "PING_SECONDS"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name) / 10)


@contextmanager
def deaf() -> Iterator[str]:
    """The URL of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("answers", "why"), [(False, "does not answer ("), (True, "gave no answer within 0.3 s")])
def test_a_pool_says_that_no_server_answers_until_one_does(
    servers, learner, tokenizer, words, tmp_path, monkeypatch, answers, why
) -> None:
    """Whether it refuses connections, or accepts them and never answers."""
    monkeypatch.setattr(pool_module, "SAID_SECONDS", 1.0)
    [server] = servers("vllm")
    with pool_of([server], learner, tokenizer, tmp_path, seconds=2.5) as engine, deaf() as hanging:
        said: list[tuple[float, str]] = []
        engine._log = lambda line: said.append((time.monotonic() - started, line))
        requests = sampled(words, groups=2)

        async def ask() -> list[Completion]:
            with away(engine._replicas[0]) as replica:
                if answers:
                    object.__setattr__(replica.server, "url", hanging)
                turns = [asyncio.create_task(engine.complete(*request)) for request in requests]
                await asyncio.sleep(2.2)
            replica.client.url = replica.url
            return list(await asyncio.gather(*turns))

        started = time.monotonic()
        assert len(asyncio.run(ask())) == len(requests)
    first, second, *_, last = said
    assert re.match(r"pool: no server has answered for [01] s \(http://127\.0\.0\.1", first[1])
    assert why in first[1]
    assert "; the run waits" in second[1]
    assert second[0] - first[0] > 0.9
    assert last[1] == "pool: a server answers again"


@pytest.mark.usefixtures("impatient")
def test_a_pool_that_is_slow_and_answers_says_nothing(servers, learner, tokenizer, words, tmp_path) -> None:
    [server] = servers("vllm", latency=1.5)
    with pool_of([server], learner, tokenizer, tmp_path) as engine:
        before = len(engine.said)
        asked(engine, sampled(words, groups=1))
        assert engine.said[before:] == []


@pytest.mark.usefixtures("impatient")
def test_a_pool_that_answers_and_ends_no_turn_is_said(
    servers, learner, tokenizer, words, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(pool_module, "SAID_SECONDS", 1.0)
    [server] = servers("vllm", latency=1.9)
    with pool_of([server], learner, tokenizer, tmp_path) as engine:
        asked(engine, sampled(words, groups=1))
        assert "pool: 4 requests wait, and none has ended for 1 s" in engine.said


@pytest.mark.usefixtures("impatient")
def test_weights_that_no_server_takes_are_said_while_they_wait(
    servers, learner, tokenizer, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("sleuth.engines.remote.vllm.LOAD_SECONDS", 1.5)
    with pool_of(servers("vllm"), learner, tokenizer, tmp_path) as engine, deaf() as hanging:
        with away(engine._replicas[0]) as replica:
            object.__setattr__(replica.server, "url", hanging)
            engine.publish(2)
        assert "pool: no server has answered for " in engine.said[-2]
        assert "without new weights" in engine.said[-1]


def test_only_the_newest_weights_stay_in_the_folder(servers, learner, tokenizer, tmp_path) -> None:
    with pool_of(servers("vllm"), learner, tokenizer, tmp_path) as engine:
        for version in (2, 3, 4):
            moved(learner)
            engine.publish(version)
    assert [replica.name[:6] for replica in sorted(tmp_path.iterdir())] == ["000003", "000004"]


def test_completions_that_end_within_a_moment_share_a_query_for_the_label() -> None:
    class Counting(EngineReplica):
        queries = 0

        async def weights(self) -> str:
            self.queries += 1
            return "000001-a"

    async def ended(replica: Counting, after: float) -> str:
        await asyncio.sleep(after)
        return await replica._fresh_label()

    async def run() -> int:
        server: Any = SimpleNamespace(url="http://127.0.0.1:9", api=None)
        health: Any = SimpleNamespace(in_flight=0)
        replica = Counting(server, health)
        replica.connect(requests_at_once=8, seconds=1.0)
        with patch.object(replica_module, "GATHERING_SECONDS", 0.2):
            labels = await asyncio.gather(*(ended(replica, after) for after in (0.0, 0.02, 0.04, 0.06)))
        assert labels == ["000001-a"] * 4
        return replica.queries

    assert asyncio.run(run()) == 1
