"""A pool of servers writes what the learner would, whatever befalls them: nothing stale, lost or counted twice."""

from __future__ import annotations

import asyncio
import copy
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
import torch
from emulator.engine import EmulatedEngine
from emulator.served import KINDS, EmulatedServer
from pools import CONTEXT, asked, away, move, require_same_turns
from safetensors.torch import load_file
from transformers import PreTrainedModel

from sleuth.engines.remote import pool as pool_module
from sleuth.engines.remote import weight_sync
from sleuth.engines.remote.completions import RawCompletion
from sleuth.engines.remote.http_client import HttpClient, LostResponseError, ServerFailedError, UnavailableError
from sleuth.engines.remote.pool import PoolEngine
from sleuth.engines.remote.server import discover_server, discover_servers
from sleuth.engines.remote.weight_sync import EngineReplica, WeightsDifferError
from sleuth.learn.master_weights import learner_logprobs
from sleuth.render import decode
from sleuth.training.rollout_worker import Background
from sleuth.types import Completion, Sampling, Segment, SleuthError

each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@each_kind
def test_log_probabilities_over_several_turns_are_the_learners(servers, pools, learner, words, kind, temperature):
    move(learner)
    engine = pools.open(servers(kind, raw=False), temperature=temperature)
    tokens, turns = words(9), []
    for turn in range(4):  # an answer is read before each turn but the first
        key = (0, 0, 1, 0, 0, turn)
        [written] = asked(engine, [(tokens, Sampling(max_tokens=12, temperature=temperature, key=key))])
        turns.append((list(tokens), written))
        tokens = [*tokens, *written.tokens, *words(7, turn)]
    for before, written in turns:
        ours = learner_logprobs(learner, before, written.tokens, temperature)
        assert written.logprobs == pytest.approx(ours, abs=1e-4)


@pytest.mark.long
@each_kind
def test_turns_go_on_across_updates_and_each_token_is_that_of_its_version(servers, pools, learner, kind):
    engine = pools.open(servers(kind, kind, token_seconds=0.05, tail=0.5), max_policy_lag=3)
    requests = pools.sampled(groups=3, siblings=3, max_tokens=60)
    models = {1: copy.deepcopy(learner)}
    with closing(Background()) as background:
        turns = [background.submit(engine.complete(*request)) for request in requests]
        for version in (2, 3):
            time.sleep(1.0)
            move(learner)
            models[version] = copy.deepcopy(learner)
            engine.publish(version)
        completions = [turn.result() for turn in turns]
    assert any(len(turn.updates) == 2 for turn in completions)
    for (before, _), turn in zip(requests, completions, strict=True):
        assert len(turn.tokens) == len(turn.logprobs) == 60 or turn.stop == "eos"
        names = ("tokens", "text", "logprobs", "policy_version", "updates")
        segment, begin = Segment(author="policy", **{name: getattr(turn, name) for name in names}), 0
        for version, count in segment.version_counts:
            expected = learner_logprobs(models[version], before, turn.tokens, 1.0)[begin : begin + count]
            assert turn.logprobs[begin : begin + count] == pytest.approx(expected, abs=1e-4)
            begin += count
    figures = engine.figures()
    assert figures["turns_resumed"] > 0
    assert figures["turns_redrawn"] == 0


def test_weights_go_out_where_turns_may_begin_also_after_an_evaluation_in_a_loop_of_its_own(
    servers, pools, monkeypatch
):
    engine = pools.open(servers("vllm"), max_policy_lag=2)
    request, connect, threads = pools.sampled(groups=1, siblings=1)[0], EngineReplica.connect, []

    def noted(replica, **limits):
        threads.append(threading.current_thread().name)
        connect(replica, **limits)

    monkeypatch.setattr(EngineReplica, "connect", noted)
    with closing(Background()) as background:
        background.submit(engine.complete(*request)).result()
        asyncio.run(engine.complete(*request))
        engine.publish(2)
        background.submit(engine.complete(*request)).result()
    assert threads == ["rollouts", "MainThread", "rollouts"]


def halved(engine: PoolEngine, at: int) -> list[tuple[int, int, tuple[int, ...]]]:
    """Has an update end each turn `at` a token. Returns what is asked for from then on: the length of the prompt, the
    most tokens, and the key of the draw."""
    generate, requests = engine._generate, []

    async def half(tokens: Any, sampling: Sampling, limit: int, group: Any) -> Any:
        raw, version = await generate(tokens, replace(sampling, stops=()), limit, group)
        requests.append((len(tokens), limit, sampling.key))
        if len(requests) == 2:
            return raw, 2
        return replace(raw, tokens=raw.tokens[:at], logprobs=raw.logprobs[:at], finish_reason="abort"), version

    engine._generate = half
    return requests


def test_a_turn_that_goes_on_has_what_is_left_and_draws_anew(servers, pools):
    """With the seed of its first tokens, the later ones would be drawn as those were."""
    engine = pools.open(servers("vllm"), max_policy_lag=2)
    [(prompt, sampling)] = pools.sampled(groups=1, siblings=1, max_tokens=24, temperature=0.0)
    requests = halved(engine, 9)
    [turn] = asked(engine, [(prompt, sampling)])
    assert (turn.policy_version, turn.updates) == (1, ((9, 2),))
    assert requests == [(len(prompt), 24, sampling.key), (len(prompt) + 9, 15, (*sampling.key, 9))]
    [whole] = pools.written_here([(prompt, sampling)])
    require_same_turns([turn], [whole])


def test_a_stop_string_that_an_update_cut_ends_the_turn_where_it_ends(servers, pools):
    """A server sees only the half that it writes."""
    engine = pools.open(servers("sglang"), max_policy_lag=2)
    [(prompt, sampling)] = pools.sampled(groups=1, siblings=1, max_tokens=24, temperature=0.0)
    [whole] = asked(engine, [(prompt, sampling)])
    halved(engine, 11)
    stop = decode(pools.tokenizer, whole.tokens[9:13])
    [turn] = asked(engine, [(prompt, replace(sampling, stops=(stop,)))])
    assert turn.stop == "stop"
    assert turn.tokens == whole.tokens[: len(turn.tokens)]
    assert turn.updates == ((11, 2),)


def test_a_server_that_returns_nothing_of_what_updates_interrupt_ends_the_run_with_one_line(servers, pools):
    engine = pools.open(servers("vllm"), max_policy_lag=2)
    nothing = RawCompletion(tokens=(), logprobs=(), finish_reason="abort")

    async def send(*_: Any) -> Any:
        return nothing, 1

    engine._send = send
    with pytest.raises(SleuthError, match="no server returned what it had of it: set engine"):
        asked(engine, pools.sampled(groups=1, siblings=1))


@each_kind
def test_a_turn_that_arrives_while_its_server_pauses_is_asked_anew(servers, pools, monkeypatch, kind):
    monkeypatch.setattr(weight_sync, "INTERRUPT_SECONDS", 0.2)
    [server] = servers(kind, token_seconds=0.02)
    engine = pools.open([server], max_policy_lag=2)
    server.fault(latency=0.4, token_seconds=0.02)  # it lies before the server's engine, which pauses meanwhile
    with closing(Background()) as background:
        turns = [background.submit(engine.complete(*one)) for one in pools.sampled(groups=1, max_tokens=30)]
        time.sleep(0.2)
        server.fault(latency=0.0, token_seconds=0.02)
        engine.publish(2)
        assert {turn.result().policy_version for turn in turns} == {2}
    assert engine.figures()["turns_redrawn"] == 0


# -- before a run ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [True, False])
@each_kind
def test_whether_log_probabilities_are_scaled_is_probed(servers, tokenizer, kind, raw):
    [server] = servers(kind, raw=raw)
    found = discover_server(server.url, tokenizer=tokenizer, eos_ids=server.engine.eos_ids)
    assert found.logprobs == ("before temperature" if raw else "after temperature")
    problems = [problem.partition(",")[0] for problem in found.problems(context=CONTEXT, temperature=0.7)]
    assert problems == ["returns log-probabilities before temperature"] * raw
    assert found.problems(context=CONTEXT, temperature=1.0) == []


@pytest.mark.parametrize(
    ("kind", "left", "said"),
    [("vllm", "/pause", "left paused"), ("vllm", "/sleep", "left asleep"), ("sglang", "/pause_generation", "")],
)
def test_a_server_that_a_killed_run_left_paused_is_woken(servers, tokenizer, kind, left, said):
    [server] = servers(kind)
    httpx.post(server.url + left, json={}).raise_for_status()
    lines: list[str] = []
    how = {"tokenizer": tokenizer, "eos_ids": server.engine.eos_ids, "context": CONTEXT, "temperature": 1.0}
    with patch("sleuth.engines.remote.server.PROBE_SECONDS", 5.0):
        [found] = discover_servers([server.url], log=lines.append, **how)
    assert found.url == server.url
    assert said in lines[0]


def test_a_server_that_hangs_before_a_run_is_said_at_once(tokenizer, monkeypatch):
    monkeypatch.setattr("sleuth.engines.remote.server.STATE_SECONDS", 0.2)
    monkeypatch.setattr("sleuth.engines.remote.server.PROBE_SECONDS", 0.5)
    lines: list[str] = []
    how = {"tokenizer": tokenizer, "eos_ids": (), "context": CONTEXT, "temperature": 1.0}
    with deaf() as url, pytest.raises(SleuthError, match=r"gave no answer within 0\.5 seconds"):
        discover_servers([url], log=lines.append, **how)
    assert lines == [f"pool: {url} accepts connections and answers nothing; it is given 0.5 s more"]


# -- load --------------------------------------------------------------------------------------------------------------


def test_siblings_stay_together_and_groups_are_spread(servers, pools):
    pair = servers("vllm", "sglang")
    engine = pools.open(pair)
    before = [server.fault() for server in pair]
    asked(engine, pools.sampled(groups=6, siblings=5))
    assert [server.fault() - count for server, count in zip(pair, before, strict=True)] == [15, 15]


def test_concurrent_turns_at_a_server_stay_within_the_limit(servers, pools):
    [server] = servers("sglang", latency=0.02)
    engine, most, write = pools.open([server], requests_at_once=3), 0, server.engine.write

    async def watched(*arguments: object) -> object:
        nonlocal most
        most = max(most, server.engine.running + 1)
        return await write(*arguments)

    server.engine.write = watched
    asked(engine, pools.sampled())
    assert most == 3


# -- failures of turns -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [{"error_every": 3}, {"cut_every": 3}, {"hang_every": 5}])
@each_kind
def test_a_turn_that_a_server_does_not_finish_is_sampled_again_with_its_seed(servers, pools, tmp_path, kind, fault):
    requests = pools.sampled(max_tokens=8)
    expected = asked(pools.open(servers(kind), folder=tmp_path / "sound"), requests)
    pair = servers(kind, kind)
    engine = pools.open(pair, seconds=1.0)
    pair[0].fault(**fault)
    assert [turn.tokens for turn in asked(engine, requests)] == [turn.tokens for turn in expected]
    assert engine.figures()["turns_redrawn"] > 0


@each_kind
def test_a_turn_during_a_weight_load_is_sampled_again(servers, pools, words, kind):
    """What was asked of it afterwards says nothing of what wrote."""
    [server] = servers(kind)
    engine = pools.open([server])
    server.fault(latency=0.3)

    async def ask() -> None:
        turn = asyncio.create_task(engine.complete(words(9), Sampling(max_tokens=8, key=(0, 0, 1, 0, 0, 0))))
        await asyncio.sleep(0.1)
        engine._replicas[0].loads += 1
        await turn

    asyncio.run(ask())
    assert engine.figures()["turns_redrawn"] == 1


def test_a_turn_of_a_server_that_is_gone_before_it_names_its_weights_is_sampled_again(servers, pools, monkeypatch):
    [server] = servers("vllm")
    engine, get, gone = pools.open([server]), HttpClient.get, []

    async def goes_once(client: HttpClient, path: str, **how: Any) -> object:
        if server.fault() > before and not gone:  # it has written the turn
            gone.append(path)
            raise UnavailableError("does not answer")
        return await get(client, path, **how)

    before = server.fault()
    monkeypatch.setattr(HttpClient, "get", goes_once)
    asked(engine, pools.sampled(groups=1, siblings=1))
    assert gone == ["/weight_info"]
    assert (server.fault() - before, engine.figures()["turns_redrawn"]) == (2, 1)


def test_an_unavailable_pool_fails_with_one_line_after_the_timeout(servers, pools):
    engine = pools.open(servers("sglang"), unavailable_timeout=1.0)
    started = time.monotonic()
    with (
        away(engine._replicas[0]),
        pytest.raises(SleuthError, match=r"no server of the pool answered for 1 seconds \(http.*does not answer"),
    ):
        asked(engine, pools.sampled(groups=1))
    assert time.monotonic() - started < 8


# -- restarts and other weights ----------------------------------------------------------------------------------------


@each_kind
def test_a_restarted_server_gets_the_weights_before_it_generates(servers, pools, learner, kind):
    move(learner)
    [server] = servers(kind)
    engine = pools.open([server])
    server.fault(forget=0.3)
    pools.require_learners_turns(engine)
    assert engine.figures()["servers_reloaded"] == 1
    assert "came back with the weights 'default' and was given '000001-" in pools.lines[-1]


@each_kind
def test_an_unnoticed_restart_is_detected_by_the_first_completion(servers, pools, learner, monkeypatch, kind):
    move(learner)
    [server] = servers(kind)
    requests = pools.sampled(groups=1, siblings=1, temperature=0.0)
    engine = pools.open([server])
    monkeypatch.setattr(EngineReplica, "is_same_process", property(lambda replica: not replica.may_have_restarted))
    server.fault(forget=0)
    before = server.fault()
    [written] = asked(engine, requests)
    assert server.fault() - before == 2
    figures, [here] = engine.figures(), pools.written_here(requests)
    assert (written.tokens, figures["turns_redrawn"], figures["servers_reloaded"]) == (here.tokens, 1, 1)


@contextmanager
def meddling(server: EmulatedServer) -> Iterator[None]:
    """While a completion is on its way, somebody else names the weights."""
    server.fault(latency=0.6)

    def meddle() -> None:
        time.sleep(0.2)
        server.engine.label = "theirs"

    meddler = threading.Thread(target=meddle)
    meddler.start()
    yield
    meddler.join()


@pytest.mark.sentinel
def test_a_completion_that_names_other_weights_ends_the_run_and_one_by_unknown_weights_is_discarded(servers, pools):
    [server] = servers("sglang")
    engine = pools.open([server])
    said = r"wrote with the weights 'theirs', .* is at '000001-[0-9a-f]{12}'"
    with meddling(server), pytest.raises(WeightsDifferError, match=said):
        asked(engine, pools.sampled(groups=1, siblings=1))
    [server] = servers("vllm")  # whose completions name none
    engine = pools.open([server])
    with meddling(server):
        asked(engine, pools.sampled(groups=1, siblings=1))
    figures = engine.figures()
    assert (figures["turns_redrawn"], figures["servers_reloaded"]) == (1, 1)


def test_a_server_that_loses_its_weights_again_and_again_ends_the_run(servers, pools, monkeypatch):
    [server] = servers("vllm")
    engine = pools.open([server])
    server.engine.label = "theirs"

    async def in_vain(*arguments: object) -> None:
        """Another run gives it its own at once."""

    monkeypatch.setattr("sleuth.engines.remote.vllm.Vllm.load", in_vain)
    with pytest.raises(WeightsDifferError, match=r"would write with the weights 'theirs', .* is at '000001-"):
        asked(engine, pools.sampled(groups=1, siblings=1))


# -- weights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "hinted"), [("vllm", True), ("sglang", False)])
def test_a_server_that_only_claims_to_have_loaded_weights_is_detected(
    servers, pools, learner, make_model, tmp_path, kind, hinted
):
    """A vLLM of a tied model, which may keep old output weights, with what to serve instead."""
    said = r"says that it has the weights 00000\d-.* and writes with others.*; nothing of it was trained on"
    [server] = servers(kind)
    engine = pools.open([server])
    server.fault(stale=True)
    move(learner)
    with pytest.raises(SleuthError, match=said):
        engine.publish(2)
    engine = pools.open([server], learner=make_model(tied=True), folder=tmp_path / "tied", published=False)
    with pytest.raises(SleuthError, match=said) as caught:
        engine.publish(1)
    hint = "serve an untied copy instead, made by sleuth merge MODEL MODEL-untied --untie"
    assert (hint in str(caught.value)) == hinted
    assert "\n" not in str(caught.value)


def test_servers_of_an_untied_copy_take_the_weights_of_a_tied_model(servers, make_model, pools):
    tied = make_model(tied=True)
    move(tied)
    engine = pools.open(servers("vllm", "sglang"), learner=tied)
    assert "lm_head.weight" in load_file(engine._weight_sync.published.path / "model.safetensors")
    pools.require_learners_turns(engine, tied)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("vllm", "/reset_prefix_cache says success: false"), ("sglang", "/flush_cache refused with 400")],
)
def test_a_server_that_keeps_its_prefix_cache_is_given_the_weights_again(
    servers, pools, learner, monkeypatch, kind, reason
):
    """vLLM says so with status 200, while blocks of its cache are in use."""
    flush, kept = EmulatedEngine.flush, []

    async def busy_once(engine: EmulatedEngine) -> bool:
        kept.append(engine.label)
        return len(kept) > 1 and await flush(engine)

    engine = pools.open(servers(kind))
    move(learner)
    monkeypatch.setattr(EmulatedEngine, "flush", busy_once)
    engine.publish(2)
    assert "without new weights: http://127.0.0.1" in pools.lines[-1]
    assert reason in pools.lines[-1]
    pools.require_learners_turns(engine)
    assert engine.figures()["servers_reloaded"] == 1
    assert len(kept) == 2


@pytest.mark.parametrize(
    ("kind", "sleeps", "last"),
    [
        ("vllm", False, "/resume"),
        ("vllm", True, "/wake_up"),
        ("sglang", False, "/continue_generation"),
        ("sglang", True, "/resume_memory_occupation"),
    ],
)
def test_an_interrupted_weight_load_is_repeated(servers, pools, learner, monkeypatch, kind, sleeps, last):
    """It has their label, and may be paused, or half asleep: it would never write."""
    post, lost = HttpClient.post, []

    async def broken(client: HttpClient, path: str, *arguments: object, **how: object) -> object:
        """The server is never told the last of it, the first time."""
        waking = "weights" not in str([arguments, how])
        if path == last and waking and not lost:
            lost.append(path)
            raise LostResponseError("broke off")
        return await post(client, path, *arguments, **how)

    engine = pools.open(servers(kind), sleeps=sleeps, seconds=5.0)
    engine.sleep()
    move(learner)
    monkeypatch.setattr(HttpClient, "post", broken)
    engine.publish(2)
    assert "without new weights" in pools.lines[-1]
    started = time.monotonic()
    asked(engine, pools.sampled(temperature=0.0))
    assert (lost, time.monotonic() - started < 5.0) == ([last], True)
    pools.require_learners_turns(engine)


def test_a_vllm_whose_engine_dies_while_it_loads_gets_the_weights_when_it_is_back(servers, pools, learner, monkeypatch):
    """It answers the load with 500, as for weights that it cannot read."""
    post = HttpClient.post
    [server] = servers("vllm")

    async def dying(client: HttpClient, path: str, *arguments: object, **how: object) -> object:
        if path == "/collective_rpc":
            monkeypatch.setattr(HttpClient, "post", post)
            server.fault(forget=1.0)
            raise ServerFailedError("refused with 500: EngineCore encountered an issue.")
        return await post(client, path, *arguments, **how)

    engine = pools.open([server])
    move(learner)
    monkeypatch.setattr(HttpClient, "post", dying)
    engine.publish(2)
    assert "without new weights" in pools.lines[-1]
    pools.require_learners_turns(engine)
    assert engine.figures()["servers_reloaded"] == 1


@pytest.mark.parametrize(("kind", "label"), [("vllm", "default"), ("sglang", "000001-")])
def test_weights_that_a_server_cannot_read_are_one_line_and_leave_it_able_to_generate(
    servers, pools, learner, monkeypatch, kind, label
):
    """A vLLM, which has none after a refusal, with those that it was started with; an SGLang with those before."""
    move(learner)
    [server] = servers(kind)
    initial = {name: weight.clone() for name, weight in server.engine._model.state_dict().items()}

    def blind(model: PreTrainedModel, folder: Path) -> None:
        raise SleuthError(f"{folder}: holds no .safetensors file")

    engine = pools.open([server])
    monkeypatch.setattr("emulator.engine.load_published", blind)
    with pytest.raises(SleuthError, match=r"could not load .* every server must see the folder engine.weights"):
        engine.publish(2)
    assert not server.engine.paused
    assert server.engine.label.startswith(label)
    held = server.engine._model.state_dict()
    assert all(torch.equal(held[name], weight) for name, weight in initial.items()) == (label == "default")


def test_only_the_newest_weights_stay_in_the_folder(servers, pools, learner):
    engine = pools.open(servers("vllm"))
    for version in (2, 3, 4):
        move(learner)
        engine.publish(version)
        if version == 2:
            [place] = pools.folder.glob("000001-*")
            os.utime(place, (time.time() + 3600,) * 2)  # the clock was set back
    assert [place.name[:6] for place in sorted(pools.folder.iterdir())] == ["000003", "000004"]


# -- silence -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch) -> None:
    """Seconds become tenths; what a pool says is due within ten."""
    worst = pool_module.SILENT_SECONDS + weight_sync.PING_SECONDS + pool_module.WATCH_SECONDS
    assert worst < 10
    for module, name in (
        *((pool_module, name) for name in ("SILENT_SECONDS", "SAID_SECONDS", "PING_AFTER", "WATCH_SECONDS")),
        (weight_sync, "PING_SECONDS"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name) / 10)


@contextmanager
def deaf() -> Iterator[str]:
    """The URL of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("answers", "why"), [(False, "does not answer ("), (True, "gave no answer within 0.3 s")])
def test_a_pool_says_that_no_server_answers_until_one_does(servers, pools, monkeypatch, answers, why) -> None:
    """Whether it refuses connections, or accepts them and never answers."""
    monkeypatch.setattr(pool_module, "SAID_SECONDS", 1.0)
    engine, requests = pools.open(servers("vllm"), seconds=2.5), pools.sampled(groups=2)
    said: list[tuple[float, str]] = []
    engine._log = lambda line: said.append((time.monotonic() - started, line))

    async def ask() -> list[Completion]:
        with away(engine._replicas[0], hanging if answers else None) as replica:
            turns = [asyncio.create_task(engine.complete(*request)) for request in requests]
            await asyncio.sleep(2.2)
        replica.client.url = replica.url
        return list(await asyncio.gather(*turns))

    with deaf() as hanging:
        started = time.monotonic()
        assert len(asyncio.run(ask())) == len(requests)
    first, second, *_, last = said
    assert re.match(r"pool: no server has answered for [01] s \(http://127\.0\.0\.1", first[1])
    assert why in first[1]
    assert "; the run waits" in second[1]
    assert second[0] - first[0] > 0.9
    assert last[1] == "pool: a server answers again"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("latency", "expected"), [(1.5, []), (1.9, ["pool: 4 requests wait, and none has ended for 1 s"])]
)
def test_a_pool_that_answers_says_only_that_no_turn_ends(servers, pools, monkeypatch, latency, expected) -> None:
    if expected:
        monkeypatch.setattr(pool_module, "SAID_SECONDS", 1.0)
    engine = pools.open(servers("vllm", latency=latency))
    pools.lines.clear()
    asked(engine, pools.sampled(groups=1))
    assert pools.lines[:1] == expected
