"""Decode steps as CUDA graphs, without a card: what is captured runs as a plain function, and our kernel for pages has
a stand-in."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
import torch
from fake_card import HostWaits, Launches, WithoutCard, ragged_engine, two_launches, use_kernel, use_sample_kernels
from playing import gather
from torch._subclasses.fake_tensor import FakeTensorMode
from windowed_models import windowed_model

from sleuth.engines.local import decode_graphs
from sleuth.engines.local.attention import Kernels
from sleuth.engines.local.decode_graphs import DecodeBuffers, bucket_of, decode_step
from sleuth.engines.local.engine import HELD_STEPS, LocalEngine
from sleuth.host.variables import GRAPHS_VARIABLE
from sleuth.kernels.card_pass import PAGE
from sleuth.types import Sampling, SleuthError


def plain_kernel(query, keys, values, table, jobs, scale, window, output=None):
    """Our kernel for pages, sequence by sequence."""
    output = torch.empty_like(query) if output is None else output
    for number, stop, *pages in table.tolist():
        own = torch.tensor(pages[: math.ceil(stop / PAGE)])
        seen = slice(max(0, stop - window), stop)
        own_keys, own_values = (tensor[:, own].flatten(1, 2)[:, seen] for tensor in (keys, values))
        shares = (torch.einsum("hgd,hkd->hgk", query[number], own_keys) * scale).softmax(-1)
        output[number] = torch.einsum("hgk,hkd->hgd", shares, own_values)
    return output


@pytest.fixture(autouse=True)
def kernel(monkeypatch):
    use_kernel(monkeypatch, plain_kernel)


@pytest.fixture
def captured(monkeypatch):
    """Replaces the capture by the function itself; the buckets of captured steps."""
    buckets = []

    def capture(work, pool):
        buckets.append(work.args[2].rows)
        return work

    monkeypatch.setattr(decode_graphs, "capture_graph", capture)
    return buckets


def engine_of(model, tokenizer, graphs, lines=None, slots=40):
    log = (lambda line: None) if lines is None else lines.append
    engine = LocalEngine(model, tokenizer, slots=slots, context=128, lookahead=True, graphs=graphs, log=log)
    engine._kernels = Kernels(decoding=True)
    return engine


def play(engine, words, count=12):
    async def episode(number):
        trajectory, written = words(4 + 11 * (number % 3), number % 3), []
        for turn in range(2):
            sampling = Sampling(max_tokens=12 + 2 * number, temperature=number % 4 / 2, key=(number, turn))
            completion = await engine.complete(trajectory, sampling)
            written.append(completion)
            trajectory = [*trajectory, *completion.tokens, *words(9, 50 + number)]
        return written

    return gather(*map(episode, range(count)))


def same(played, expected):
    for turns, others in zip(played, expected, strict=True):
        for one, other in zip(turns, others, strict=True):
            assert (one.tokens, one.stop, one.text) == (other.tokens, other.stop, other.text)
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@pytest.mark.parametrize("family", ["qwen3", "gemma3 in windows"])
def test_replayed_steps_have_the_tokens_of_steps_launched_kernel_by_kernel(
    make_model, tokenizer, words, captured, family
):
    model = make_model("qwen3") if family == "qwen3" else windowed_model("gemma3", len(tokenizer))
    model.generation_config.eos_token_id = [7, 8, 9]
    lines = []
    engine = engine_of(model, tokenizer, True, lines)
    played = play(engine, words)
    same(played, play(engine_of(model, tokenizer, False), words))
    assert len(set(captured)) == len(captured) >= 2
    assert not lines
    engine.sleep()
    same(play(engine, words), played)  # with a new cache, and so with new graphs
    assert len(captured) == 2 * len(set(captured))


@pytest.mark.parametrize("graphs", [True, False])
def test_with_graphs_prompts_wait_while_many_slots_decode(make_model, tokenizer, words, captured, monkeypatch, graphs):
    """One request after another arrives while eight others decode; one of them may not wait once they have ended."""
    model = make_model("qwen3")
    model.generation_config.eos_token_id = []
    engine = engine_of(model, tokenizer, graphs)
    steps, scheduled = [], engine._schedule
    monkeypatch.setattr(engine, "_schedule", lambda: (steps.append(scheduled()), steps[-1])[1])

    async def arrive(number):
        while len(steps) < 12 + 3 * number:
            await asyncio.sleep(0)
        return await engine.complete(words(7, 90 + number), Sampling(max_tokens=3, key=(9, number)))

    long = (engine.complete(words(5, number), Sampling(max_tokens=60, key=(0, number))) for number in range(8))
    gather(*long, *map(arrive, range(4)))
    with_chunks = [number for number, (_, chunks) in enumerate(filter(None, steps)) if chunks]
    between = np.diff(with_chunks[1:])
    assert with_chunks[0] == 0
    assert (min(between) >= HELD_STEPS) if graphs else (min(between) < HELD_STEPS)


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 9, 17, 33, 40])
def test_a_step_in_a_bucket_is_the_step_of_its_rows_and_leaves_all_other_keys_alone(make_model, tokenizer, words, rows):
    """With all sizes of the last bucket filled up or full; the spare page has what filling rows write."""
    model = make_model("qwen3").double()
    engine = engine_of(model, tokenizer, True)
    table, state = engine._table, engine._decode_state
    with engine._inference_mode():
        for slot in range(rows):
            tokens = words(3 + slot % 11, slot)
            placement = table.place(tokens)
            assert placement is not None
            table.occupy(placement, tokens)
            state.begin(placement.slot, Sampling(max_tokens=9, key=(slot,)), length=len(tokens), limit=9, watched=False)
            engine._running[placement.slot] = type("Request", (), {"prompt": tokens, "sampling": None})()
        engine._step()  # reads the prompts and samples a token of each, unknown to the host
        slots, _ = table.schedule(512)
        assert len(slots) == rows
        cache, sampled = engine._cache, engine._sampled
        buffers = DecodeBuffers(bucket_of(rows), table.pages.pages.shape[1], torch.device("cpu"))
        buffers.fill(table, slots, state, spare_page=cache.pages - 1)
        keys = cache.layers[0][0]
        before = keys.clone()
        decode_step(engine._logits, cache, buffers, sampled.by_slot)
        once, changed = buffers.sampled.clone(), (keys != before).any(dim=-1)[0, :-1]
        keys.copy_(before)
        decode_step(engine._logits, cache, buffers, sampled.by_slot)
        assert torch.equal(once[:, :rows], buffers.sampled[:, :rows])
        engine._forward_and_sample.__func__(without_graphs(engine), slots, [])
        plain = sampled.pending.arrival.read()
    assert np.array_equal(plain[0], once[0, :rows].numpy())
    np.testing.assert_allclose(plain[1], once[1, :rows].numpy(), rtol=1e-6)
    at = table.cached[slots] - 1  # of the tokens that the step has read
    written = zip(table.pages.pages[slots, at // PAGE].tolist(), (at % PAGE).tolist(), strict=True)
    assert {tuple(place) for place in changed.nonzero().tolist()} == set(written)


def test_a_graph_decodes_all_batches_of_a_quarter_of_its_rows_and_more(make_model, tokenizer, words, captured):
    """Requests end one after another: the graph of all of them is used until a quarter of them is left."""
    model = make_model("qwen3")
    model.generation_config.eos_token_id = []
    engine = engine_of(model, tokenizer, True)
    settings = [Sampling(max_tokens=12 + 2 * number, key=(number,)) for number in range(32)]
    gather(*(engine.complete(words(5, number), sampling) for number, sampling in enumerate(settings)))
    assert captured == [32, 8]


def without_graphs(engine):
    engine._graphs = None
    return engine


@pytest.mark.parametrize("failure", ["raises", "samples others"])
def test_a_step_that_cannot_be_captured_is_launched_kernel_by_kernel_in_a_line(
    make_model, tokenizer, words, monkeypatch, failure
):
    def capture(work, pool):
        if failure == "raises":
            raise RuntimeError("operation not permitted when stream is capturing\nCompile with ...")
        return lambda: None

    monkeypatch.setattr(decode_graphs, "capture_graph", capture)
    model, lines = make_model("qwen3"), []
    engine = engine_of(model, tokenizer, True, lines)
    same(play(engine, words), play(engine_of(model, tokenizer, False), words))
    line = "the engine launches decode steps kernel by kernel, without CUDA graphs: "
    raised = "operation not permitted when stream is capturing"
    assert lines == [line + (raised if failure == "raises" else "the captured step sampled other tokens")]


def test_attention_that_pads_keys_is_not_captured(make_model, tokenizer, words):
    lines = []
    engine = engine_of(make_model("qwen3"), tokenizer, True, lines)
    engine._kernels = Kernels()
    play(engine, words, 2)
    assert len(lines) == 1
    assert lines[0].endswith("keys are padded for attention, as many as the longest text has")


def captured_step_on_a_card(tokenizer, monkeypatch, problem):
    """The operators, and those for which the host waits, of a captured step of 256 rows on a card of fake tensors."""
    use_kernel(monkeypatch, two_launches)
    use_sample_kernels(monkeypatch, problem)
    with FakeTensorMode(allow_non_fake_inputs=True), HostWaits() as waits, Launches() as launches, WithoutCard():
        engine = ragged_engine(tokenizer, 1)
        slots, _ = engine._schedule()
        buffers = DecodeBuffers(256, 64, engine.model.device)
        buffers.fill(engine._table, slots, engine._decode_state, spare_page=0)
        launches.count = 0
        with engine._inference_mode():
            decode_step(engine._logits, engine._cache, buffers, engine._sampled.by_slot)
        return launches.count, waits.names


@pytest.mark.parametrize("problem", [None, "sampled in torch"])
def test_no_operator_of_a_captured_step_needs_the_host(tokenizer, monkeypatch, problem):
    launches, waits = captured_step_on_a_card(tokenizer, monkeypatch, problem)
    assert waits == []
    assert launches > 20


def test_graphs_are_used_on_a_card_unless_the_environment_switches_them_off(model, tokenizer, monkeypatch):
    monkeypatch.setenv(GRAPHS_VARIABLE, "no")
    with FakeTensorMode(allow_non_fake_inputs=True), WithoutCard():
        with pytest.raises(SleuthError, match="SLEUTH_CUDA_GRAPHS = 'no': expected 0"):
            ragged_engine(tokenizer, 1)
        monkeypatch.setenv(GRAPHS_VARIABLE, "0")
        assert ragged_engine(tokenizer, 1)._graphs is None
        monkeypatch.delenv(GRAPHS_VARIABLE)
        assert ragged_engine(tokenizer, 1)._graphs is not None
    assert LocalEngine(model, tokenizer, slots=1, context=64)._graphs is None
