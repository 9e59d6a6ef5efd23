from __future__ import annotations

import asyncio
import gc

import pytest
import torch
from playing import gather, require_logprobs

from sleuth.engines.local import attention
from sleuth.engines.local.engine import LocalEngine
from sleuth.render import decode
from sleuth.types import Sampling, SleuthError


def engine_of(model, tokenizer, *, slots=8, context=128) -> LocalEngine:
    return LocalEngine(model, tokenizer, slots=slots, context=context)


async def episode(engine, prompt, observation, *, key, lengths=(9, 14), temperature=1.0):
    """Two turns with an observation between: what each continued, and its completion."""
    turns = []
    for turn, length in enumerate(lengths):
        sampling = Sampling(max_tokens=length, temperature=temperature, key=(*key, turn))
        turns.append((tuple(prompt), await engine.complete(prompt, sampling)))
        prompt = [*prompt, *turns[-1][1].tokens, *observation]
    return turns


ARCHITECTURES = pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama"])


@ARCHITECTURES
def test_attention_that_only_decodes_has_the_bytes_of_the_models_own(
    make_model, tokenizer, words, architecture, monkeypatch
):
    def play():
        engine = engine_of(make_model(architecture), tokenizer, slots=4)
        return gather(*(episode(engine, words(5 + 7 * key, seed=key), words(3), key=(key,)) for key in range(4)))

    written, swift = play(), []

    def noted(*arguments):
        swift.append(1)
        return rotate(*arguments)

    rotate = attention._rotate_and_write
    with monkeypatch.context() as patch:
        patch.setattr(attention, "_rotate_and_write", noted)
        assert play() == written
    assert len(swift) > 40  # two layers of each forward without a prompt
    monkeypatch.setattr("sleuth.engines.local.engine.decode_forwards", lambda model: [])
    assert play() == written


def test_nothing_is_fused_also_where_the_learner_would(make_model, tokenizer, words, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("fused")

    monkeypatch.setattr("sleuth.kernels.fused.on_card", lambda *tensors: True)
    monkeypatch.setattr("sleuth.kernels.fused.Fused.__call__", refuse)
    gather(episode(engine_of(make_model(), tokenizer), words(5), words(3), key=(0,)))


@ARCHITECTURES
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_a_plain_forward_over_the_final_trajectory(
    make_model, tokenizer, words, architecture, temperature
):
    model = make_model(architecture)
    engine = engine_of(model, tokenizer, slots=6, context=192)
    episodes = (
        episode(
            engine,
            words(5 + 7 * (sample % 5), seed=sample % 5),
            words(3 + 11 * sample, seed=50 + sample),
            key=(0, sample),
            lengths=(4 + 3 * sample, 20 - sample),
            temperature=temperature,
        )
        for sample in range(10)
    )
    differences: list[float] = []
    for turns in gather(*episodes):
        for prompt, completion in turns:
            differences += require_logprobs(model, prompt, completion, temperature)
    assert len(differences) > 150
    assert sum(differences) / len(differences) <= 1e-5


def test_what_was_read_before_is_not_read_again(model, tokenizer, words):
    """The prompt of a group, the same beginning of several prompts, and the turns before."""
    engine, prompt = engine_of(model, tokenizer), words(50)
    gather(*(engine.complete(prompt, Sampling(max_tokens=5, key=(0, sample))) for sample in range(8)))
    assert engine.tokens_prefilled == 50 + 7  # the first sibling reads it; the others its last token, for its logits
    assert engine.tokens_reused == 7 * 49
    engine, template = engine_of(model, tokenizer), words(40)
    gather(*(engine.complete(template + words(10, 1 + p), Sampling(max_tokens=3, key=(p,))) for p in range(4)))
    assert engine.tokens_prefilled == 40 + 4 * 10
    engine = engine_of(model, tokenizer)
    gather(episode(engine, words(30), words(12, seed=1), key=(0,)))
    assert engine.tokens_prefilled == 30 + 12 + 1  # and the last sampled token, which nothing had read yet


def test_the_same_key_gives_the_same_completion_whatever_runs_beside_it(model, tokenizer, words):
    prompt = words(20)
    sampling = Sampling(max_tokens=30, key=(3, 1, 4))
    alone = gather(engine_of(model, tokenizer).complete(prompt, sampling))[0]
    engine = engine_of(model, tokenizer)
    others = [
        engine.complete(words(4 + 9 * p, seed=p), Sampling(max_tokens=9 + p, key=(3, p // 3, p))) for p in range(12)
    ]
    beside = gather(*others[:5], engine.complete(prompt, sampling), *others[5:])[5]
    assert beside.tokens == alone.tokens
    assert beside.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_siblings_differ_and_every_run_gives_the_same_bytes(model, tokenizer, words):
    def run():
        engine = engine_of(model, tokenizer, slots=3)
        return gather(*(episode(engine, words(20), words(9, 1), key=(0, sample)) for sample in range(6)))

    first = run()
    assert first == run()
    assert len({turns[1][1].tokens for turns in first}) == 6


@ARCHITECTURES
def test_greedy_is_what_transformers_generates_greedily(make_model, tokenizer, words, architecture):
    model = make_model(architecture)
    prompts = [words(n, seed=n) for n in (3, 17, 40)]
    engine = engine_of(model, tokenizer)
    written = gather(*(engine.complete(prompt, Sampling(max_tokens=25, temperature=0)) for prompt in prompts))
    for prompt, completion in zip(prompts, written, strict=True):
        ids = torch.tensor([prompt])
        options = {"do_sample": False, "max_new_tokens": 25, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :].tolist()
        assert list(completion.tokens) == expected
        require_logprobs(model, prompt, completion)


def test_a_stop_string_across_tokens_ends_the_text_and_the_last_token_stays_whole(model, tokenizer, words):
    prompt = words(10)
    engine = engine_of(model, tokenizer)
    free = gather(engine.complete(prompt, Sampling(max_tokens=100, key=(7,))))[0]
    texts = [decode(tokenizer, free.tokens[:n]) for n in range(101)]
    # The last character before a token of two or more, and that token's first: they meet here for the first time.
    stop, count = next(
        (stop, n)
        for n in range(2, 101)
        if (stop := texts[n][len(texts[n - 1]) - 1 :][:2]).isascii()
        and len(texts[n]) > len(texts[n - 1]) + 1
        and free.text.index(stop) == len(texts[n - 1]) - 1
    )
    stopped = gather(engine.complete(prompt, Sampling(max_tokens=100, key=(7,), stops=("never written", stop))))[0]
    assert (stopped.stop, stopped.tokens) == ("stop", free.tokens[:count])
    assert stopped.text == texts[count - 1] + stop[1:]
    assert len(stopped.text) < len(texts[count])  # the overhang is in the tokens, not in the text


def test_the_end_token_ends_the_completion_and_stays_out_of_its_text(make_model, tokenizer, words):
    model = make_model()
    prompt, sampling = words(10), Sampling(max_tokens=20, key=(7,))
    unstopped = gather(engine_of(model, tokenizer).complete(prompt, sampling))[0]
    model.generation_config.eos_token_id = [unstopped.tokens[4]]
    length = unstopped.tokens.index(unstopped.tokens[4]) + 1
    ended = gather(engine_of(model, tokenizer).complete(prompt, sampling))[0]
    assert (ended.stop, ended.tokens) == ("eos", unstopped.tokens[:length])
    assert len(ended.logprobs) == length
    assert ended.text == decode(tokenizer, unstopped.tokens[: length - 1])


def test_a_closed_stream_or_a_cancelled_request_frees_its_slot_and_its_place(model, tokenizer, words):
    engine = engine_of(model, tokenizer, slots=1)

    async def leave():
        stream = engine.stream(words(9), Sampling(max_tokens=100))
        async for _ in stream:
            break
        await stream.aclose()
        running, waiting = (
            asyncio.create_task(engine.complete(words(9), Sampling(max_tokens=100, key=(key,)))) for key in range(2)
        )
        sampled = engine.tokens_sampled
        while engine.tokens_sampled == sampled:
            await asyncio.sleep(0)
        waiting.cancel()
        running.cancel()
        return await engine.complete(words(5), Sampling(max_tokens=2, key=(2,)))

    assert len(gather(leave())[0].tokens) == 2
    assert engine.tokens_sampled < 40


def test_requests_are_admitted_in_the_order_of_their_keys(model, tokenizer, words):
    engine = engine_of(model, tokenizer, slots=1)
    finished = []

    async def ask(key):
        await engine.complete(words(4), Sampling(max_tokens=2, key=key))
        finished.append(key)

    keys = [(0, 2, 0), (0, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 5)]
    gather(*map(ask, keys))
    assert finished == sorted(keys)


def test_a_long_prompt_is_read_in_parts(make_model, tokenizer, words, monkeypatch):
    monkeypatch.setattr("sleuth.engines.local.engine.CPU_FORWARD_TOKENS", 16)
    model = make_model()
    engine = engine_of(model, tokenizer)
    for turns in gather(*(episode(engine, words(50, p), words(40, p), key=(p,), lengths=(8, 8)) for p in range(3))):
        for prompt, completion in turns:
            require_logprobs(model, prompt, completion)


def test_a_failure_reaches_every_caller_and_the_engine_lives_on(make_model, tokenizer, words):
    model = make_model()
    engine = engine_of(model, tokenizer, slots=2)

    async def collect():
        return [chunk async for chunk in engine.stream(words(5), Sampling(max_tokens=5, key=(9,)))]

    async def all_of_them():
        asks = [engine.complete(words(5, p), Sampling(max_tokens=5, key=(p,))) for p in range(4)]
        beyond_vocabulary = engine.complete([10**6], Sampling(max_tokens=5, key=(-1,)))
        return await asyncio.gather(*asks, beyond_vocabulary, collect(), return_exceptions=True)

    assert [type(outcome) for outcome in gather(all_of_them())[0]] == [IndexError] * 6
    assert len(gather(engine.complete(words(5), Sampling(max_tokens=5)))[0].tokens) == 5


def test_an_interruption_reaches_the_caller_and_is_reported_once(make_model, tokenizer, words, monkeypatch, caplog):
    engine = engine_of(make_model(), tokenizer)

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "_step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(engine.complete(words(5), Sampling(max_tokens=5)))
    gc.collect()  # asyncio reports a task whose exception nobody took when it is freed
    assert "never retrieved" not in caplog.text


def test_diverged_weights_are_a_clear_error(make_model, tokenizer, words):
    model = make_model()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(SleuthError, match="not finite"):
        gather(engine_of(model, tokenizer).complete(words(5), Sampling(max_tokens=5)))


def test_published_weights_are_used_and_stamped_and_nothing_old_is_reused(make_model, tokenizer, words):
    model = make_model()
    engine = engine_of(model, tokenizer)
    prompt = words(20)
    before = gather(engine.complete(prompt, Sampling(max_tokens=5)))[0]
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight.mul_(-1.0)
    engine.publish(3)
    after = gather(engine.complete(prompt, Sampling(max_tokens=5)))[0]
    assert (before.policy_version, after.policy_version) == (0, 3)
    assert engine.tokens_reused == 0
    require_logprobs(model, prompt, after)


def test_completions_after_publishing_do_not_depend_on_earlier_ones(model, tokenizer, words):
    def run(engine):
        engine.publish(1)
        return gather(*(episode(engine, words(9 + 5 * p, p), words(9, 1), key=(0, p)) for p in range(6)))

    used = engine_of(model, tokenizer, slots=4)
    gather(*(used.complete(words(7 * p + 1, p), Sampling(max_tokens=1 + 5 * p, key=(p,))) for p in range(7)))
    assert run(used) == run(engine_of(model, tokenizer, slots=4))


def test_decoding_continues_while_long_prompts_are_prefilled(model, tokenizer, words, monkeypatch):
    monkeypatch.setattr("sleuth.engines.local.engine.CPU_FORWARD_TOKENS", 4)
    engine = engine_of(model, tokenizer)

    async def collect():
        return [engine.forwards async for _ in engine.stream(words(2), Sampling(max_tokens=10, key=(0,)))]

    long = [engine.complete(words(40, p), Sampling(max_tokens=1, key=(p,))) for p in range(1, 5)]
    forwards = gather(collect(), *long)[0]
    assert forwards == list(range(1, 11))  # a token a forward, although the others take forty


def test_weights_are_not_published_under_a_running_request(model, tokenizer, words):
    engine = engine_of(model, tokenizer)

    async def publish_midway():
        asked = asyncio.create_task(engine.complete(words(5), Sampling(max_tokens=50)))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="are running"):
            engine.publish(1)
        await asked

    gather(publish_midway())


def test_the_context_never_overflows(model, tokenizer, words):
    engine = engine_of(model, tokenizer, context=32)
    room_for_two = gather(engine.complete(words(30), Sampling(max_tokens=10)))[0]
    assert (len(room_for_two.tokens), room_for_two.stop) == (2, "length")
    full = gather(engine.complete(words(32), Sampling(max_tokens=10)))[0]
    assert (full.tokens, full.text, full.stop) == ((), "", "length")
    with pytest.raises(SleuthError, match=r"33 tokens.*32"):
        gather(engine.complete(words(33), Sampling(max_tokens=10)))


def test_the_last_layer_computes_only_what_the_next_token_is_sampled_after(make_model, tokenizer, words):
    model, seen = make_model("qwen3"), []
    hook = model.base_model.layers[-1].mlp.gate_proj.register_forward_hook(
        lambda module, args, output: seen.append(args[0].shape[1])
    )
    engine = engine_of(model, tokenizer, slots=4)
    try:
        gather(*(engine.complete(words(40, seed=row), Sampling(max_tokens=3, key=(row,))) for row in range(3)))
    finally:
        hook.remove()
    assert seen == [3, 3, 3]  # three prompts are read and go on for three tokens
    assert engine.tokens_prefilled == 3 * 40
