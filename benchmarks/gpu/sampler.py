"""Checks of the sampler with a random model: even and ragged requests, requests with tool results between turns, and
greedy tokens beside Hugging Face's."""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from benchmarks.gpu.card import allocated_bytes, describe, planned_card, timed
from benchmarks.gpu.checks import Check
from benchmarks.gpu.learner import relative_error
from benchmarks.gpu.profiled import found_profile, launches, together
from benchmarks.gpu.watched import Watch, watched
from benchmarks.workloads import geometric
from sleuth.engines.local import engine as local_engine
from sleuth.engines.local.cache import bytes_per_token, head_size
from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.local.paged_attention import (
    ChunkwiseAttention,
    GatheredAttention,
    KernelAttention,
    PromptAttention,
    decode_problem,
    prefill_problem,
)
from sleuth.kernels.card_pass import PAGE
from sleuth.learn.batch import Row
from sleuth.learn.logprobs import row_logprobs
from sleuth.types import Completion, Sampling

SIBLINGS = 8
COMPARED = 32
"""Sequences whose log-probabilities the learner computes again."""
MEAN_GAP, LARGEST_GAP, FP32_GAP = 0.02, 0.1, 1e-3
"""Of log-probabilities between sampler and learner, in nats: in bf16, where they were 0.0065 and 0.023 on a CPU, and in
fp32. A page of keys that is left out makes a mean of 0.05, a single key one of 0.007."""
ATTENTION_ERROR = 0.01
"""Relative error of paged attention in bf16; a key that is left out of 400 makes one of 5 %."""
LAUNCHES = 2_500
EVEN_SPEED, RAGGED_SPEED = 20_000, 9_000
EVEN_STEP, TOOLS_SECONDS = 5.0, 2.5
"""Milliseconds of a decode step of `even`, seconds of `tools`."""
PROFILED = 4
"""Decode steps whose kernel launches are counted."""
FEW = 8
"""Requests of a batch that is so small that the card does not limit its steps."""

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A prompt, what was sampled after it, and the log-probabilities of that."""

    prompt: Tokens
    tokens: Tokens = ()
    logprobs: tuple[float, ...] = ()

    @property
    def all_tokens(self) -> Tokens:
        return self.prompt + self.tokens

    def then(self, completion: Completion) -> Written:
        assert completion.logprobs is not None
        tokens, logprobs = self.tokens + completion.tokens, self.logprobs + completion.logprobs
        return Written(prompt=self.prompt, tokens=tokens, logprobs=logprobs)


def even(check: Check) -> None:
    """Requests of one length, siblings of a prompt; and whether the cache is given back."""
    draw = random.Random("even")
    prompts = [drawn(check, draw, check.scale.prompt) for _ in range(check.scale.requests // SIBLINGS)]
    requests = [prompt for prompt in prompts for _ in range(SIBLINGS)]
    _decode(check, requests, EVEN_SPEED, step=EVEN_STEP, rests=True)


def ragged(check: Check) -> None:
    """Requests of very different lengths, whose siblings share the beginning."""
    draw, scale = random.Random("ragged"), check.scale
    prompts = [drawn(check, draw, scale.prompt) for _ in range(scale.requests // SIBLINGS)]
    requests = [
        prompt + drawn(check, draw, int((scale.longest - scale.prompt) * draw.random() ** 2))
        for prompt in prompts
        for _ in range(SIBLINGS)
    ]
    _decode(check, requests, RAGGED_SPEED)


def _decode(
    check: Check, requests: Sequence[Tokens], speed: float, *, step: float | None = None, rests: bool = False
) -> None:
    """All figures of these requests, with our kernel where it works; without it where it does not, or where no time of
    a `step` is demanded."""
    model, tokenizer = check.scale.model(check.device), check.scale.tokenizer()
    problem = local_engine.decode_problem(model.device, model.dtype, head_size(model.config))
    if problem is not None:
        check.skip(f"attention by our kernel: {problem}")
    else:  # of this way alone is a speed demanded
        _decode_by(check, "kernel", model, tokenizer, requests, speed=speed, step=step, rests=rests)
    if problem is not None or step is None:
        with patch.object(local_engine, "decode_problem", lambda *asked: "switched off by the check"):
            _decode_by(check, "padded", model, tokenizer, requests, rests=rests)


def _decode_by(
    check: Check,
    way: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    requests: Sequence[Tokens],
    *,
    speed: float | None = None,
    step: float | None = None,
    rests: bool = False,
) -> None:
    """The prompts are read first, then all requests are continued together: every forward of the continuation is a
    decode step of all of them."""
    before = allocated_bytes(check.device)
    free = torch.cuda.mem_get_info(check.device)[0] if check.on_card else 0
    engine = open_engine(check, model, tokenizer)
    requests = requests[: fitting(requests, engine, check.scale.decode + 3 * PROFILED + 1)]
    count, steps = len(requests), check.scale.decode
    warm_up(engine, check.scale.longest)
    written, read_before = [Written(prompt=prompt) for prompt in requests], engine.tokens_prefilled
    (written, _), seconds = clocked(check, lambda: continue_all(engine, written, 1))
    check.found(f"{way}: prompts read", (engine.tokens_prefilled - read_before) / seconds, "tokens/s")
    written, _ = continue_all(engine, written, 2 * PROFILED)  # captures a graph
    with watched(check) as watch:
        (written, forwards), seconds = clocked(check, lambda: continue_all(engine, written, steps))
    floor = check.speed_bar(speed) if speed is not None else None
    check.found(f"{way}: {count} decoded", count * steps / seconds, "tokens/s", at_least=floor)
    found_step(check, f"{way}: ", watch, model, written, bar=step)
    check.found(f"{way}: forwards of {steps} steps", forwards, at_most=steps)
    written = _count_launches(check, way, engine, written)
    compare(check, f"{way}: ", model, written)
    if step is not None:
        few, _ = continue_all(engine, written[:FEW], 2 * PROFILED)  # captures a graph
        with watched(check) as watch:
            few, _ = continue_all(engine, few, steps)
        found_step(check, f"{way}: {len(few)} alone, ", watch, model, few)
    if rests:
        _rest(check, engine, before, free)
    engine.sleep()


def found_step(
    check: Check,
    way: str,
    watch: Watch,
    model: PreTrainedModel,
    written: Sequence[Written],
    *,
    bar: float | None = None,
) -> None:
    """The time of a decode step of all these sequences, the median of those watched, and the share of the card's
    bandwidth at which weights and each sequence's own keys and values are read in it."""
    seconds = watch.median(mixed=False, rows=max(1, len(written) * 9 // 10))
    ceiling = None if bar is None else check.speed_bar(bar)
    check.found(f"{way}a decode step", 1e3 * seconds, "ms", at_most=ceiling)
    weights = sum({id(weight): weight.nbytes for weight in model.parameters()}.values())
    tokens = sum(len(one.all_tokens) for one in written) - len(written) * len(watch.steps) // 2
    read = weights + tokens * bytes_per_token(model.config, model.dtype)
    check.found(f"{way}read in a step", read / 1e9, "GB")
    if (card := planned_card(describe(check.device)["name"])) is not None:
        check.found(f"{way}bandwidth, share of the data sheet", read / seconds / card.bandwidth)


def open_engine(
    check: Check, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, **options: Any
) -> LocalEngine:
    """An engine for all requests at once, with the cache that it chooses."""

    def log(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    sizes: dict[str, Any] = {"slots": check.scale.requests, "context": check.scale.context}
    return LocalEngine(model, tokenizer, log=log, **sizes | options)


def warm_up(engine: LocalEngine, longest: int) -> None:
    """A few long requests, read in full batches and continued, which load all code and kernels; the engine forgets
    them."""
    continue_all(engine, [Written(prompt=(number, *range(3, longest))) for number in range(8)], 3)
    engine.publish(0)


def fitting(requests: Sequence[Tokens], engine: LocalEngine, tokens: int) -> int:
    """How many of the requests fit the cache together, whole and with `tokens` more each."""
    taken = 0
    for count, request in enumerate(requests):
        taken += -(-(len(request) + tokens) // PAGE) + 1
        if taken > engine.cache_pages:
            return max(1, count)
    return len(requests)


def continue_all(engine: LocalEngine, written: Sequence[Written], tokens: int) -> tuple[list[Written], int]:
    """All sequences with `tokens` more, and the number of forwards that it took."""
    before = engine.forwards

    async def write() -> list[Completion]:
        return await asyncio.gather(
            *(
                engine.complete(one.all_tokens, Sampling(max_tokens=tokens, key=(0, len(one.tokens), number)))
                for number, one in enumerate(written)
            )
        )

    completions = asyncio.run(write())
    together = [one.then(completion) for one, completion in zip(written, completions, strict=True)]
    return together, engine.forwards - before


def clocked(check: Check, work: Any) -> tuple[Any, float]:
    """The result of `work` and its seconds."""
    kept: list[Any] = []
    seconds = timed(check.device, lambda: kept.append(work()))
    return kept[0], seconds


def _count_launches(check: Check, way: str, engine: LocalEngine, written: Sequence[Written]) -> list[Written]:
    """Kernel launches of a decode step by torch's profiler; on a CPU operators, which have no bar."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * check.on_card
    with profile(activities=activities) as profiler:
        together, forwards = continue_all(engine, written, PROFILED)
    counts = {event.key: event.count for event in profiler.key_averages()}
    if not check.on_card:
        check.found(f"{way}: operators of a step", operators(counts) / forwards)
    elif launches(counts):
        check.found(f"{way}: launches of a step", launches(counts) / forwards, at_most=LAUNCHES)
    else:
        check.skip(f"{way}: launches of a step: torch's profiler sees none here, as CUPTI is missing or not permitted")
    return together


def operators(counts: dict[str, int]) -> int:
    """Calls of torch's operators among the profiler's events."""
    return sum(count for name, count in counts.items() if name.startswith("aten::"))


def compare(check: Check, way: str, model: PreTrainedModel, written: Sequence[Written]) -> None:
    """The sampler's log-probabilities beside the learner's, of some sequences of all lengths."""
    some = written[:: max(1, len(written) // COMPARED)]
    rows = [
        Row(
            tokens=one.all_tokens,
            trained=(False,) * len(one.prompt) + (True,) * len(one.tokens),
        )
        for one in some
    ]
    again = row_logprobs(model, rows, budget=check.scale.budget)
    pairs = [
        (ours, theirs)
        for one, row in zip(some, again, strict=True)
        for ours, theirs in zip(one.logprobs, row[len(one.prompt) :], strict=True)
    ]
    _found_gaps(check, way, pairs)


def _found_gaps(check: Check, way: str, pairs: Iterable[tuple[float, float]]) -> None:
    gaps = [abs(ours - theirs) for ours, theirs in pairs]
    check.found(f"{way}learner gap, mean", math.fsum(gaps) / len(gaps), "nats", at_most=MEAN_GAP)
    check.found(f"{way}learner gap, most", max(gaps), "nats", at_most=LARGEST_GAP)


def _rest(check: Check, engine: LocalEngine, before: int, free: int) -> None:
    """What `sleep` leaves of the cache's memory, with torch and on the card."""
    cache = allocated_bytes(check.device) - before
    engine.sleep()
    check.found("cache", cache / 1e9, "GB")
    check.found("asleep: left with torch, share", (allocated_bytes(check.device) - before) / cache, at_most=0.01)
    if check.on_card:
        lost = free - torch.cuda.mem_get_info(check.device)[0]
        check.found("asleep: left on the card, share", lost / cache, at_most=0.1)


def tools(check: Check) -> None:
    """Episodes of a query, results that are read, and an answer, each at its own pace: decoding and reading mixed."""
    scale, draw = check.scale, random.Random("tools")
    query_mean, block, answer_mean = scale.turns
    model = scale.model(check.device)
    engine = open_engine(check, model, scale.tokenizer())
    lengths = [
        (geometric(draw, query_mean, 4 * query_mean), geometric(draw, answer_mean, 4 * answer_mean))
        for _ in range(scale.requests)
    ]
    blocks = [drawn(check, draw, block) for _ in range(scale.requests)]

    async def episode(number: int, step: int, prompts: Sequence[Tokens]) -> tuple[Written, Written]:
        key, prompt = (0, 0, step, number), prompts[number // SIBLINGS]
        query, answer = (Sampling(max_tokens=length, key=(*key, turn)) for turn, length in enumerate(lengths[number]))
        first = Written(prompt=prompt).then(await engine.complete(prompt, query))
        read = first.all_tokens + blocks[number]
        return first, Written(prompt=read).then(await engine.complete(read, answer))

    async def play(step: int) -> list[tuple[Written, Written]]:
        prompts = [drawn(check, draw, scale.prompt) for _ in range(scale.requests // SIBLINGS)]
        return await asyncio.gather(*(episode(number, step, prompts) for number in range(scale.requests)))

    asyncio.run(play(0))  # captures a graph for each size of batch
    sampled, read, forwards = engine.tokens_sampled, engine.tokens_prefilled, engine.forwards
    preempted = engine.preemptions
    episodes, seconds = clocked(check, lambda: asyncio.run(play(1)))
    check.found(f"{len(episodes)} episodes of two turns", seconds, "s", at_most=check.speed_bar(TOOLS_SECONDS))
    check.found("tokens sampled", (engine.tokens_sampled - sampled) / seconds, "tokens/s")
    check.found("tokens read", (engine.tokens_prefilled - read) / seconds, "tokens/s")
    check.found("forwards", engine.forwards - forwards)
    check.found("requests preempted", engine.preemptions - preempted)
    _found_mixed(check, lambda: asyncio.run(play(2)))
    compare(check, "", model, [turn for turns in zip(*episodes, strict=True) for turn in turns])


def _found_mixed(check: Check, work: Callable[[], object]) -> None:
    """Steps of each kind, and what one takes by itself: those that read prompts while many rows decode are launched
    kernel by kernel, and three of these are profiled. Steps that only read are the first ones."""
    rows = check.scale.requests // 4
    with watched(check, apart=True, asked=lambda step: step.mixed and step.decoding >= rows) as watch:
        work()
    both = [step for step in watch.steps if step.mixed and step.decoding]
    for name, steps in {
        "decode": [step for step in watch.steps if not step.mixed],
        "mixed": both,
        "reading": [step for step in watch.steps if step.mixed and not step.decoding],
    }.items():
        check.found(f"{name} steps", len(steps))
        check.found(f"{name} steps: apart, all", sum(step.seconds for step in steps), "s")
    check.found("decode steps: apart, median", 1e3 * watch.median(mixed=False), "ms")
    if not both:
        check.skip("mixed steps: there were none")
        return
    check.found("mixed steps: apart, median", 1e3 * watch.median(mixed=True), "ms")
    check.found("mixed steps: tokens read, mean", statistics.fmean(step.read for step in both))
    check.found("mixed steps: rows decoding, mean", statistics.fmean(step.decoding for step in both))
    if watch.profiles:
        seen = together(watch.profiles)
        found_profile(check, "mixed step", seen, times=len(watch.profiles), top=6)
        alike = [step.seconds for step in both if step.profiled is None and step.decoding >= rows]
        if seen.kernels and alike:
            share = seen.busy / len(watch.profiles) / statistics.median(alike)
            check.found("mixed step: kernels, share of its time", share)


def paged(check: Check) -> None:
    """Attention over pages of ragged sequences, for decoding and for prefill, beside fp32, with random keys."""
    scale, device, draw = check.scale, check.device, np.random.default_rng(0)
    rows, sharing = min(64, scale.requests), scale.heads // scale.kv_heads
    lengths = scale.prompt + ((scale.longest - scale.prompt) * draw.random(rows) ** 2).astype(np.int64)
    counts = -(-lengths // PAGE)
    table, free = np.zeros((rows, counts.max()), dtype=np.int32), draw.permutation(counts.sum())
    for row, (first, count) in enumerate(zip(np.cumsum(counts) - counts, counts, strict=True)):
        table[row, :count] = free[first : first + count]
    whole = scale.prompt // PAGE
    table[:, :whole] = table[np.arange(rows) // SIBLINGS * SIBLINGS, :whole]  # siblings share their prompt
    generator = torch.Generator().manual_seed(0)

    def random(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator).to(device, torch.bfloat16)

    keys, values = (random(scale.kv_heads, len(free), PAGE, scale.head_dim) for _ in range(2))
    starts = {"decode": lengths - 1, "prefill": np.maximum(0, lengths - 100)}
    asked = device, torch.bfloat16, scale.head_dim
    problems = {"decode": decode_problem(*asked), "prefill": prefill_problem(*asked)}
    for name, problem in problems.items():
        if problem is not None:
            check.skip(f"our kernel: {name}: {problem}")
    for phase, begin in starts.items():
        query = random(int((lengths - begin).sum()), scale.kv_heads, sharing, scale.head_dim)
        exact, in_window = (
            _exact_attention(query, keys, values, table, begin, lengths, window) for window in (None, scale.prompt)
        )
        ways: dict[str, Any] = {}
        if phase == "decode":
            ways["padded"] = GatheredAttention(table, lengths, PAGE, device)
            if problems[phase] is None:
                ways["our kernel"] = KernelAttention.of(table, lengths, PAGE, device)
        else:
            ways["one by one"] = ChunkwiseAttention(table, begin, lengths, PAGE, device)
            if problems[phase] is None:
                ways["our kernel"] = PromptAttention(table, begin, lengths, PAGE, device)
        for name, way in ways.items():
            attend = partial(way.attend, query, keys, values, scale.head_dim**-0.5)
            error = relative_error(attend(), exact)
            check.found(f"{name}: {phase}, error", error, at_most=ATTENTION_ERROR)
            windowed = way.within(scale.prompt).attend(query, keys, values, scale.head_dim**-0.5)
            error = relative_error(windowed, in_window)
            check.found(f"{name}: {phase}, in a window, error", error, at_most=ATTENTION_ERROR)
            seconds = statistics.median(timed(device, attend) for _ in range(5))
            check.found(f"{name}: {phase}, a layer", 1e3 * seconds, "ms")
        if phase == "decode" and "our kernel" in ways:
            together, other = ways["our kernel"].attend(query, keys, values, scale.head_dim**-0.5), 0
            for row in (slice(number, number + 1) for number in range(rows)):
                alone = KernelAttention.of(table[row], lengths[row], PAGE, device)
                output = alone.attend(query[row], keys, values, scale.head_dim**-0.5)
                other += not torch.equal(output, together[row])
            check.found("our kernel: decode, rows with other numbers alone", other, at_most=0)


def _exact_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    table: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    window: int | None,
) -> Tensor:
    """Causal attention of the tokens from `starts` to `stops` of each row, one row after another in fp32; with a
    `window`, to the last so many tokens."""
    outputs, page = [], keys.shape[2]
    for row, part in enumerate(query.split((stops - starts).tolist())):
        first, stop = int(starts[row]), int(stops[row])
        pages = torch.from_numpy(table[row, : -(-stop // page)]).to(keys.device)
        own_keys, own_values = (tensor[:, pages.long()].flatten(1, 2)[:, :stop].float() for tensor in (keys, values))
        scores = torch.einsum("thgd,hld->hgtl", part.float(), own_keys) * part.shape[-1] ** -0.5
        at = torch.arange(stop, device=keys.device)
        hidden = at > at[first:, None]
        if window is not None:
            hidden |= at <= at[first:, None] - window
        scores = scores.masked_fill(hidden, float("-inf"))
        outputs.append(torch.einsum("hgtl,hld->thgd", scores.softmax(-1), own_values))
    return torch.cat(outputs)


def greedy(check: Check) -> None:
    """Greedy tokens in bf16 and fp32: how far Hugging Face's own forward ranks ours below its best, how likely it finds
    them, and how many are those of its `generate`."""
    requests, tokens = check.scale.greedy
    draw = random.Random("greedy")
    prompts = [drawn(check, draw, draw.randint(check.scale.prompt // 2, check.scale.prompt)) for _ in range(requests)]
    model = check.scale.model(check.device)
    tokenizer = check.scale.tokenizer()
    for name, below_best, gap, share in (("bf16", 0.1, LARGEST_GAP, None), ("fp32", 1e-3, FP32_GAP, 0.95)):
        model = model.float() if name == "fp32" else model
        engine = open_engine(check, model, tokenizer)
        ours = asyncio.run(_greedy(engine, prompts, tokens))
        engine.sleep()
        theirs = _generated(model, prompts, tokens)
        compared = [_beside_forward(model, one) for one in ours]
        check.found(f"{name}: below its best logit", max(below for below, _ in compared), at_most=below_best)
        check.found(f"{name}: log p, most", max(apart for _, apart in compared), "nats", at_most=gap)
        pairs = zip(ours, theirs, strict=True)
        same = sum(a == b for one, other in pairs for a, b in zip(one.tokens, other, strict=True))
        check.found(f"{name}: as generate, share", same / (requests * tokens), at_least=share)


async def _greedy(engine: LocalEngine, prompts: Sequence[Tokens], tokens: int) -> list[Written]:
    limits = [Sampling(max_tokens=tokens, temperature=0, key=(0, number)) for number in range(len(prompts))]
    done = await asyncio.gather(*(engine.complete(*request) for request in zip(prompts, limits, strict=True)))
    return [Written(prompt=prompt).then(completion) for prompt, completion in zip(prompts, done, strict=True)]


@torch.inference_mode()
def _generated(model: PreTrainedModel, prompts: Sequence[Tokens], tokens: int) -> list[Tokens]:
    """The tokens of `generate`, padded on the left."""
    longest = max(map(len, prompts))
    padded = [(0,) * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [(0,) * (longest - len(prompt)) + (1,) * len(prompt) for prompt in prompts]
    config = GenerationConfig(
        max_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0, disable_compile=True
    )
    written: Any = model.generate(  # type: ignore[operator]
        input_ids=torch.tensor(padded, device=model.device),
        attention_mask=torch.tensor(mask, device=model.device),
        generation_config=config,
    )
    return [tuple(row) for row in written[:, longest:].tolist()]


@torch.inference_mode()
def _beside_forward(model: PreTrainedModel, written: Written) -> tuple[float, float]:
    """How far below the largest logit of transformers' own forward the written tokens are at most, and how far their
    log-probabilities are from its own."""
    count = len(written.prompt)
    inputs = torch.tensor([written.all_tokens], device=model.device)
    logits = model(input_ids=inputs, use_cache=False).logits[0, count - 1 : -1].float()
    chosen = logits.gather(1, inputs[0, count:, None])[:, 0]
    apart = (chosen - logits.logsumexp(dim=-1)).cpu() - torch.tensor(written.logprobs)
    return float((logits.amax(dim=-1) - chosen).max()), float(apart.abs().max())


def drawn(check: Check, draw: random.Random, count: int) -> Tokens:
    """Random tokens without the special ones."""
    return tuple(draw.randrange(3, check.scale.vocabulary) for _ in range(count))
