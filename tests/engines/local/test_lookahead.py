"""Steps that begin before the host has read the tokens of the step before."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from fake_card import HostWaits, WithoutCard, ragged_engine, two_launches, use_kernel, use_sample_kernels
from playing import gather, out_of_memory_above
from torch._subclasses.fake_tensor import FakeTensorMode

from sleuth.engines.local import slots
from sleuth.engines.local.attention import Kernels
from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.local.slots import UNKNOWN
from sleuth.kernels.card_pass import PAGE
from sleuth.types import Sampling


def engine_of(model, tokenizer, ahead, **options):
    return LocalEngine(model, tokenizer, **{"slots": 8, "context": 192, **options}, lookahead=ahead)


async def episode(engine, words, number, *, stops=()):
    """(tokens, log-probabilities) of two turns with an observation between, every third one streamed."""
    trajectory, written = words(5 + 9 * (number % 4), number % 4), []
    for turn in range(2):
        sampling = Sampling(max_tokens=20 + 3 * number, key=(0, number, turn), stops=stops)
        if number % 3:
            chunks = [await engine.complete(trajectory, sampling)]
        else:
            chunks = [chunk async for chunk in engine.stream(trajectory, sampling)]
        tokens = [token for chunk in chunks for token in chunk.tokens]
        written.append((tokens, [logprob for chunk in chunks for logprob in chunk.logprobs], chunks[-1].stop))
        trajectory = [*trajectory, *tokens, *words(7, 90 + number)]
    return written


def same(episodes, others):
    for one, other in zip(episodes, others, strict=True):
        for (tokens, logprobs, stop), (their_tokens, their_logprobs, their_stop) in zip(one, other, strict=True):
            assert (tokens, stop) == (their_tokens, their_stop)
            # A row too many in a forward, and products of another shape add in another order.
            assert logprobs == pytest.approx(their_logprobs, rel=1e-5, abs=1e-5)


def both_ways(model, tokenizer, words, **options):
    """The episodes of an engine that waits and of one that looks ahead, and the engines."""
    engines = [engine_of(model, tokenizer, ahead, **options) for ahead in (False, True)]
    played = [gather(*(episode(engine, words, n, stops=(" ", "<")) for n in range(12))) for engine in engines]
    same(*played)
    assert engines[0].tokens_sampled == engines[1].tokens_sampled
    return played[1], engines


def test_episodes_that_end_anywhere_have_the_same_tokens(make_model, tokenizer, words):
    model = make_model("qwen3")
    model.generation_config.eos_token_id = list(range(5, 15))
    episodes, _ = both_ways(model, tokenizer, words)
    assert {stop for turns in episodes for _, _, stop in turns} == {"stop", "eos", "length"}


def test_preempted_requests_have_the_same_tokens(make_model, tokenizer, words):
    model = make_model("qwen3")
    model.generation_config.eos_token_id = [5]
    _, engines = both_ways(model, tokenizer, lambda n, seed: words(n + 30, seed), cache_pages=4)
    assert engines[1].preemptions > 0


def test_texts_that_end_by_their_length_have_the_same_bytes_in_as_many_forwards(model, tokenizer, words):
    told = []
    for ahead in (False, True):
        engine = engine_of(model, tokenizer, ahead)
        asked = (
            engine.complete(words(5 + 9 * n, n), Sampling(max_tokens=9 + 4 * n, key=(0, n)))
            for n in range(engine.slots)
        )
        told.append((gather(*asked), engine.forwards, engine.tokens_sampled))
    assert told[0] == told[1]


def test_what_an_ended_request_sampled_too_many_is_dropped_and_its_page_freed(make_model, tokenizer, words):
    model = make_model("qwen3")
    length, sampling = 5, Sampling(max_tokens=30, key=(7,))
    prompt = words(PAGE + 1 - length)  # the token too many begins a page
    free = gather(engine_of(model, tokenizer, False).complete(prompt, sampling))[0]
    assert free.tokens[length - 1] not in free.tokens[: length - 1]
    model.generation_config.eos_token_id = [free.tokens[length - 1]]
    tables = []
    for ahead in (False, True):
        engine = engine_of(model, tokenizer, ahead)
        ended = gather(engine.complete(prompt, sampling))[0]
        assert ended.tokens == free.tokens[:length]
        tables.append(engine._table)
        assert engine.forwards == length + ahead
    plain, ahead = tables
    for name in ("tokens", "length", "cached", "busy"):
        assert np.array_equal(getattr(plain, name), getattr(ahead, name)), name
    assert plain.pages.free == ahead.pages.free


def test_a_cancelled_request_leaves_no_unknown_tokens(model, tokenizer, words):
    engine = engine_of(model, tokenizer, True, slots=1)

    async def cancel():
        running = asyncio.create_task(engine.complete(words(9), Sampling(max_tokens=100, key=(0,))))
        while engine.tokens_sampled < 3:
            await asyncio.sleep(0)
        running.cancel()
        return await engine.complete(words(9), Sampling(max_tokens=4, key=(1,)))

    completion = gather(cancel())[0]
    expected = gather(engine_of(model, tokenizer, False).complete(words(9), Sampling(max_tokens=4, key=(1,))))[0]
    assert completion.tokens == expected.tokens
    assert UNKNOWN not in engine._table.tokens[0, : engine._table.length[0]]


def test_running_out_of_memory_keeps_the_tokens_that_are_under_way(make_model, tokenizer, words):
    model, played = make_model("qwen3"), []
    for ahead in (False, True):
        engine = engine_of(model, tokenizer, ahead)
        with out_of_memory_above(model, 70) if ahead else nullcontext():
            played.append(gather(*(episode(engine, words, n) for n in range(8))))
    same(*played)


def test_on_a_card_the_host_reads_a_step_only_once_the_next_one_is_under_way(tokenizer, monkeypatch):
    """Fake tensors have no numbers: an operator for which the host waits could not even run."""
    events = []

    class Arrival:
        def __init__(self, sampled):
            self.count = sampled.shape[1]

        def read(self):
            events.append("read")
            return np.zeros((2, self.count))

    monkeypatch.setattr(slots, "Arrival", Arrival)
    use_kernel(monkeypatch, two_launches)
    use_sample_kernels(monkeypatch)
    with FakeTensorMode(allow_non_fake_inputs=True), WithoutCard():
        engine = ragged_engine(tokenizer, 1)
        engine._kernels = Kernels(decoding=True)
        requests = {slot: object() for slot in range(256)}
        engine._running.update(requests)
        engine._decode_state.watched.fill(False)
        forward = engine._forward
        monkeypatch.setattr(engine, "_forward", lambda *batch: (events.append("launch"), forward(*batch))[1])
        with HostWaits() as waits, engine._inference_mode():
            for _ in range(4):
                engine._step()
    assert waits.names == []
    assert events == ["launch", "launch", "read", "launch", "read", "launch", "read"]
    assert engine.tokens_sampled == 3 * 256


def test_a_transfer_for_which_the_host_waits_is_counted():
    with FakeTensorMode(allow_non_fake_inputs=True), HostWaits() as waits, WithoutCard():
        numbers = torch.zeros(3).to(torch.device("cuda"))
        numbers.to(torch.device("cpu"))
        numbers.to(torch.device("cpu"), non_blocking=True)
    assert waits.names == ["_to_copy", "_to_copy"]
