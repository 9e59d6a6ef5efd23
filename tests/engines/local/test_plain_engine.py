"""The engine of models that the paged cache does not fit, beside transformers' own forward and `generate`."""

from __future__ import annotations

import asyncio

import pytest
import torch
from plain_models import FAMILIES, plain_model
from playing import gather, require_logprobs

from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.local.plain_engine import PlainEngine, open_engine
from sleuth.types import Sampling, SleuthError


def played(engine, prompts, temperature=1.0, tokens=25):
    """Two siblings of each prompt with 25 more tokens, and a second turn of each after four tokens of a tool."""

    async def episode(prompt, number):
        first = await engine.complete(prompt, Sampling(max_tokens=tokens, temperature=temperature, key=(0, number, 0)))
        text = [*prompt, *first.tokens, 3, 4, 5, 6]
        key = (0, number, 1)
        return [
            (prompt, first),
            (text, await engine.complete(text, Sampling(max_tokens=9, temperature=temperature, key=key))),
        ]

    episodes = gather(*(episode(prompt, number) for number, prompt in enumerate(p for p in prompts for _ in range(2))))
    return [turn for turns in episodes for turn in turns]


@pytest.fixture(scope="module")
def model_of(tokenizer):
    made = {}
    return lambda family: made.setdefault(family, plain_model(family, len(tokenizer)))


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_and_logprobs_are_those_of_transformers_own_forward(tokenizer, words, model_of, family):
    model, prompts = model_of(family), [words(n, seed=n) for n in (3, 18, 50)]
    engine = open_engine(model, tokenizer, slots=4, context=128, cache_pages=100)
    assert isinstance(engine, PlainEngine)
    for prompt, completion in played(engine, prompts):
        require_logprobs(model, prompt, completion)
    for prompt, completion in played(open_engine(model, tokenizer, slots=4, context=128), prompts, temperature=0):
        limits = {"max_new_tokens": len(completion.tokens), "do_sample": False, "eos_token_id": tokenizer.eos_token_id}
        generated = model.generate(torch.tensor([prompt]), pad_token_id=0, **limits)[0, len(prompt) :]
        assert list(completion.tokens) == generated.tolist()


@pytest.mark.parametrize("pads", [True, False])
def test_the_same_requests_give_the_same_bytes_in_any_slots(tokenizer, words, model_of, pads, monkeypatch):
    monkeypatch.setattr(PlainEngine, "_require_exact", lambda engine: pads)
    model, prompts = model_of("lfm2"), [words(n, seed=n) for n in (3, 18, 50)]
    plays = [
        [done for _, done in played(PlainEngine(model, tokenizer, slots=slots, context=128), prompts)]
        for slots in (6, 6, 2)
    ]
    assert plays[0] == plays[1]
    assert [one.tokens for one in plays[0]] == [one.tokens for one in plays[2]]


def test_tokens_are_those_of_the_paged_engine(make_model, tokenizer, words):
    model, prompts = make_model(), [words(n, seed=n) for n in (3, 18, 50)]
    paged = played(LocalEngine(model, tokenizer, slots=4, context=128), prompts)
    plain = played(PlainEngine(model, tokenizer, slots=4, context=128), prompts)
    assert [done.tokens for _, done in paged] == [done.tokens for _, done in plain]
    assert [done.text for _, done in paged] == [done.text for _, done in plain]


def test_a_batch_begins_again_when_half_of_its_rows_have_ended(tokenizer, words, model_of):
    engine = PlainEngine(model_of("lfm2"), tokenizer, slots=4, context=128)
    lengths = (1, 2, 40, 40, 40)
    asked = [engine.complete(words(5, seed=n), Sampling(max_tokens=m, key=(n,))) for n, m in enumerate(lengths)]
    done = gather(*asked)
    assert [len(one.tokens) for one in done if one.stop == "length"] == [
        m for m, one in zip(lengths, done, strict=True) if one.stop == "length"
    ]
    assert engine.preemptions > 0
    assert engine.forwards < sum(lengths) / 2
    assert engine.running == 0


def test_a_stream_equals_the_completion_and_a_closed_one_frees_its_slot(tokenizer, words, model_of):
    engine = PlainEngine(model_of("gemma2"), tokenizer, slots=2, context=128)
    prompt, sampling = words(9), Sampling(max_tokens=20, key=(4,), stops=("a",))

    async def both():
        chunks = [chunk async for chunk in engine.stream(prompt, sampling)]
        stream = engine.stream(prompt, sampling)
        await anext(stream)
        await stream.aclose()
        return chunks, await engine.complete(prompt, sampling)

    chunks, whole = asyncio.run(both())
    assert tuple(token for chunk in chunks for token in chunk.tokens) == whole.tokens
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert engine.running == 0


def test_running_out_of_memory_halves_the_slots_and_loses_no_token(tokenizer, words, model_of, capsys):
    model, prompts = model_of("lfm2"), [words(n, seed=n) for n in (3, 18, 50)]
    before = [done.tokens for _, done in played(PlainEngine(model, tokenizer, slots=6, context=128), prompts)]
    engine = PlainEngine(model, tokenizer, slots=6, context=128)

    def limited(module, args, kwargs):
        if len(kwargs["input_ids"]) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")

    hook = model.register_forward_pre_hook(limited, with_kwargs=True)
    try:
        assert [done.tokens for _, done in played(engine, prompts)] == before
    finally:
        hook.remove()
    assert engine.slots == 3
    assert "out of memory while sampling: continuing with slots = 3" in capsys.readouterr().err


def test_a_model_whose_padding_changes_its_logits_gets_rows_of_one_length(tokenizer, words, model_of, monkeypatch):
    model = model_of("lfm2")
    assert PlainEngine(model, tokenizer, slots=4, context=128)._pads
    forward = type(model).forward
    monkeypatch.setattr(
        type(model),
        "forward",
        lambda self, input_ids=None, attention_mask=None, **options: forward(self, input_ids, **options),
    )
    engine = PlainEngine(model, tokenizer, slots=4, context=128)
    assert not engine._pads
    for prompt, completion in played(engine, [words(n, seed=n) for n in (3, 18, 50)]):
        require_logprobs(model, prompt, completion)


def test_a_cache_that_loses_tokens_is_refused_in_a_line(tokenizer, model_of, monkeypatch):
    model = model_of("lfm2")
    forward = type(model).forward
    monkeypatch.setattr(type(model), "forward", lambda self, past_key_values=None, **options: forward(self, **options))
    with pytest.raises(SleuthError, match="cache gives other logits than its text; let servers sample"):
        PlainEngine(model, tokenizer, slots=4, context=128)
