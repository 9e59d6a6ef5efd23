"""The engine with a cache that is too small for all requests."""

from __future__ import annotations

import asyncio

import pytest
import torch
from playing import gather, out_of_memory_above, place_ragged_groups

from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.local.slots import SlotTable
from sleuth.kernels.card_pass import PAGE
from sleuth.types import Sampling, SleuthError

CONTEXT = 4 * PAGE


def engine_of(model, tokenizer, pages=None, **options):
    return LocalEngine(model, tokenizer, slots=8, context=CONTEXT, cache_pages=pages, **options)


async def two_turns(engine, prompt, observation, key):
    """(token, log-probability) of both turns of an episode."""
    trajectory, written = list(prompt), []
    for turn in range(2):
        turn_key = Sampling(max_tokens=60, key=(*key, turn))
        completion = await engine.complete(trajectory, turn_key)
        written += zip(completion.tokens, completion.logprobs, strict=True)
        trajectory += [*completion.tokens, *observation]
    return written


def play(engine, words, groups=3):
    """Groups of four siblings, of two turns each."""
    episodes = (
        two_turns(engine, words(20 + 30 * group, group), words(9, 1), (group, sample))
        for group in range(groups)
        for sample in range(4)
    )
    return gather(*episodes)


@pytest.mark.parametrize("architecture", ["qwen3", pytest.param("llama", marks=pytest.mark.slow)])
def test_a_pool_of_any_size_gives_the_same_tokens_and_one_of_the_same_size_the_same_bytes(
    make_model, tokenizer, words, architecture
):
    model = make_model(architecture)
    roomy = engine_of(model, tokenizer)
    expected = play(roomy, words)
    assert roomy.preemptions == 0
    for pages in (4, 7):  # one sequence, and nearly enough
        engine, again = (engine_of(model, tokenizer, pages) for _ in range(2))
        episodes = play(engine, words)
        for episode, other in zip(episodes, expected, strict=True):
            assert [token for token, _ in episode] == [token for token, _ in other]
            # Other rows are in a forward, and products of other shapes add in another order.
            assert [logprob for _, logprob in episode] == pytest.approx([p for _, p in other], rel=1e-5, abs=1e-5)
        assert pages > 4 or play(again, words) == episodes
        assert engine.preemptions > 0


def test_a_preempted_stream_goes_on_where_it_was(model, tokenizer, words):
    def collect(engine):
        async def stream(sample):
            sampling = Sampling(max_tokens=100, key=(sample,))
            return [chunk async for chunk in engine.stream(words(50, sample), sampling)]

        return gather(*map(stream, range(4)))

    small = engine_of(model, tokenizer, 5)
    for chunks, expected in zip(collect(small), collect(engine_of(model, tokenizer)), strict=True):
        assert [chunk.tokens for chunk in chunks] == [chunk.tokens for chunk in expected]
        assert "".join(chunk.text for chunk in chunks) == "".join(chunk.text for chunk in expected)
    assert small.preemptions > 0


def test_the_first_key_is_never_preempted(model, tokenizer, words):
    engine, ended = engine_of(model, tokenizer, 4), []

    async def ask(key):
        await engine.complete(words(40, key), Sampling(max_tokens=150, key=(key,)))
        ended.append(key)

    gather(*map(ask, range(4)))
    assert ended == [0, 1, 2, 3]
    assert engine.preemptions > 0


def test_a_pool_smaller_than_one_sequence_is_refused_with_the_numbers(model, tokenizer):
    with pytest.raises(SleuthError, match=rf'cache_memory = "1KB" holds 0 tokens .* context = {CONTEXT}, .* raise'):
        engine_of(model, tokenizer, cache_memory="1KB")


def test_the_memory_of_the_cache_is_given_back_at_rest_and_taken_again(model, tokenizer, words):
    engine = engine_of(model, tokenizer)
    before = play(engine, words)
    assert engine._cache.layers
    engine.sleep()
    assert not engine._cache.layers
    assert play(engine, words) == before


def test_the_memory_of_the_cache_is_kept_for_new_weights(model, tokenizer, words):
    engine = engine_of(model, tokenizer)
    play(engine, words)
    engine.publish(1)
    assert engine._cache.layers


def test_the_cache_stays_while_requests_run(model, tokenizer, words):
    engine = engine_of(model, tokenizer)

    async def sleep_midway():
        asked = asyncio.create_task(engine.complete(words(5), Sampling(max_tokens=20)))
        while not engine.tokens_sampled:
            await asyncio.sleep(0)
        engine.sleep()
        return await asked

    assert len(asyncio.run(sleep_midway()).tokens) == 20


def test_out_of_memory_shrinks_the_cache_in_a_line_and_gives_the_same_tokens(make_model, tokenizer, words):
    model, lines = make_model("qwen3"), []
    expected = play(engine_of(model, tokenizer), words)
    engine = engine_of(model, tokenizer, log=lines.append)

    with out_of_memory_above(model, 70):
        episodes = play(engine, words)
    assert [[token for token, _ in episode] for episode in episodes] == [[t for t, _ in other] for other in expected]
    assert lines
    assert all("out of memory while sampling: continuing with a cache of" in line for line in lines)


def test_memory_that_never_suffices_is_an_error(make_model, tokenizer, words):
    model = make_model("qwen3")
    engine = engine_of(model, tokenizer)
    with out_of_memory_above(model, 0), pytest.raises(torch.OutOfMemoryError):
        play(engine, words)
    assert engine.forwards == 0


@pytest.mark.parametrize(("page_size", "most"), [(16, 1.15), (PAGE, 1.15), (256, 1.3)])
def test_ragged_groups_hold_few_more_pages_than_their_distinct_tokens_fill(page_size, most):
    table = SlotTable(256, 4_096, page_size=page_size)

    def read():
        assert table.schedule(10_000)
        table.cached[table.busy] = table.length[table.busy]

    distinct = place_ragged_groups(table, read)
    held = (table.pages.total - table.pages.free) * page_size
    assert distinct < held <= most * distinct
