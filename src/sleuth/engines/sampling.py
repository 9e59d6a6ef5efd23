"""Sampling: a request from its prompt to its stop, and each of its tokens by one uniform random number, which the
request's key alone determines."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Collection, Sequence
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerFast

from sleuth.kernels.compiled import (
    LOG2_E,
    MIN_EXPONENT,
    compiled,
    compiled_in_parallel,
    greatest,
    is_compiled_for,
    power_of_two,
    prange,
)
from sleuth.kernels.device import kernel_problem, sent
from sleuth.render import CHARACTER_TOKENS, UNFINISHED, IncrementalDecoder, StopScanner, decode, stop_end
from sleuth.types import Chunk, Completion, Sampling, SleuthError, StopReason

MIN_TEMPERATURE = torch.finfo(torch.float32).tiny
"""Lower temperatures are raised to this: fp32 may round them to 0, and 0 / 0 is NaN. All but the likeliest tokens have
probability 0 long before."""
LOGPROB_TOLERANCE = 1e-4
"""Largest difference of a token's log-probability by our kernels: fp32 rounds it to seven digits."""


def uniforms(key: Sequence[int], n: int) -> np.ndarray:
    """n random numbers in [0, 1) for the request with this `key`; the i-th is for its i-th token.

    From a counter-based generator (Philox) keyed by a hash of `key`, so concurrent requests cannot change them.
    """
    return np.random.Generator(np.random.Philox(key=_hash(key, 16))).random(n)


def request_seed(key: Sequence[int]) -> int:
    """The request's seed for servers that sample by themselves: below 2^31, which all of them accept."""
    return _hash(key, 4) >> 1


def _hash(key: Sequence[int], size: int) -> int:
    """An unsigned integer of `size` bytes."""
    digest = hashlib.blake2b(",".join(str(int(part)) for part in key).encode(), digest_size=size).digest()
    return int.from_bytes(digest, "little")


def sample(logits: torch.Tensor, temperatures: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A token and its log-probability per row: `logits` (B, V), `temperatures` (B) and `draws` (B) -> (B), (B).

    Full support: no top-p or top-k. The token is where the cumulative distribution passes the row's draw. Temperature 0
    takes the likeliest token and reports its log-probability at temperature 1; the smallest positive temperatures take
    it with log-probability 0. Tokens of probability 0 are never drawn. Probabilities are fp32, cumulative sums fp64.
    Overwrites `logits`.
    """
    if is_compiled_for(logits.device, torch.float32):
        return draw_tokens(logits.float().numpy(), raised(temperatures), draws)
    tokens, logprobs = sample_on_device(logits, temperatures, draws).cpu().numpy()  # one transfer
    return tokens.astype(np.int64), logprobs


def sample_on_device(logits: torch.Tensor, temperatures: np.ndarray, draws: np.ndarray) -> torch.Tensor:
    """As `sample`, but the results stay where the logits are, and nothing waits for them: (2, B) fp64, which holds any
    token exactly."""
    if is_compiled_for(logits.device, torch.float32):
        return torch.from_numpy(np.stack(sample(logits, temperatures, draws)))
    return draw_rows(logits, *sent(np.stack([raised(temperatures), draws]), logits.device))


def raised(temperatures: np.ndarray) -> np.ndarray:
    """The temperatures that are not 0 at least at MIN_TEMPERATURE."""
    return np.where(temperatures == 0, 0, np.maximum(temperatures, MIN_TEMPERATURE))


def draw_rows(logits: torch.Tensor, temperatures: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """`sample_rows` of logits of any dtype; on a card by our kernels, if they work there. May overwrite `logits`."""
    if sampling_problem(logits.device, logits.dtype) is None:
        from sleuth.kernels.sample_kernels import sample_by_parts  # needs Triton, which comes with torch for cards

        return sample_by_parts(logits, temperatures, draws)
    return sample_rows(logits.float(), temperatures, draws)


@cache
def sampling_problem(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why our kernels cannot sample from logits of this dtype; None if they work."""
    return kernel_problem(device, lambda: sampling_error(device, dtype), LOGPROB_TOLERANCE)


def sampling_error(device: torch.device, dtype: torch.dtype) -> float:
    """How far log-probabilities by our kernels are off those of `sample_rows`, for eight rows; infinity if they draw
    other tokens."""
    from sleuth.kernels.sample_kernels import sample_by_parts

    random = np.random.default_rng(0)
    logits = torch.from_numpy(3 * random.standard_normal((8, 10_001))).to(device, dtype)
    temperatures = np.array([0, 1, 0.6, MIN_TEMPERATURE, 0, 1, 0.6, 2])
    settings = torch.from_numpy(np.stack([temperatures, random.random(8)])).to(device)
    tokens, logprobs = sample_by_parts(logits, *settings)
    expected = sample_rows(logits.float(), *settings)
    return (logprobs - expected[1]).abs().max().item() if torch.equal(tokens, expected[0]) else math.inf


def sample_rows(probs: torch.Tensor, temperatures: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """(2, B) fp64: tokens and log-probabilities, from raised temperatures; no host takes part. Overwrites `probs`, the
    logits, with unnormalised probabilities."""
    greedy = temperatures == 0
    probs -= probs.amax(dim=-1, keepdim=True)  # (B, V)
    probs /= torch.where(greedy, 1, temperatures)[:, None].float()
    likeliest = probs.argmax(dim=-1)
    tokens, total = _pick(probs.exp_(), draws)
    tokens = torch.where(greedy, likeliest, tokens)
    chosen = probs.gather(1, tokens[:, None])[:, 0]
    return torch.stack([tokens.double(), chosen.double().log() - total.log()])


def _pick(probs: torch.Tensor, draws: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The index where the cumulative sum of `probs` (b, V) passes `draws` times the total, and the total: (b), (b)."""
    vocabulary = probs.shape[1]
    if vocabulary % BLOCK:
        probs = F.pad(probs, (0, -vocabulary % BLOCK))
    blocks = probs.unflatten(1, (-1, BLOCK))  # (b, n, STRETCH)
    ends = blocks.sum(dim=-1).cumsum(dim=-1, dtype=torch.float64)  # (b, n)
    total = ends[:, -1:]
    block, threshold = _search(ends, draws[:, None] * total)  # (b, 1) each
    before = F.pad(ends, (1, 0)).gather(1, block)
    inside = blocks.gather(1, block[:, :, None].expand(-1, 1, BLOCK))[:, 0].cumsum(dim=-1, dtype=torch.float64)
    offset, _ = _search(inside, threshold - before)
    return (block * BLOCK + offset)[:, 0].clamp(max=vocabulary - 1), total[:, 0]


def _search(cumulative: torch.Tensor, threshold: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first index (b, 1) above the threshold, and the threshold clamped below the total.

    The entry exceeds its predecessor, so its probability is not zero.
    """
    total = cumulative[:, -1:]
    threshold = torch.minimum(threshold.clamp(min=0), torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, threshold, right=True)
    return index.clamp(max=cumulative.shape[1] - 1), threshold  # beyond the last only where the total is NaN


BLOCK = 64
"""Probabilities are summed in blocks of this size: the search finds the block of the draw, then the token inside it."""


def draw_tokens(logits: np.ndarray, temperatures: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Like `sample`, compiled for fp32 `logits` (B, V) on the CPU; `temperatures` (B) are 0 or >= MIN_TEMPERATURE."""
    tokens, logprobs = np.empty(len(logits), dtype=np.int64), np.empty(len(logits))
    factors = LOG2_E / np.where(temperatures == 0, 1, temperatures).astype(np.float32)
    _draw(logits, factors, temperatures == 0, draws, tokens, logprobs)
    return tokens, logprobs


@compiled_in_parallel
def _draw(logits, factors, greedy, draws, tokens, logprobs):
    for row in prange(len(logits)):
        probs = logits[row]
        ends = np.empty(-(-len(probs) // BLOCK))  # fp64
        likeliest = np.argmax(probs) if greedy[row] else 0
        total = _exponentiate(probs, greatest(probs), factors[row], ends)
        tokens[row] = likeliest if greedy[row] else _pick_token(probs, ends, draws[row] * total)
        logprobs[row] = math.log(np.float64(probs[tokens[row]])) - math.log(total)


@compiled
def _exponentiate(logits, top, factor, ends):
    """Replaces `logits` (V) by unnormalised probabilities, 1 for the likeliest token, and fills `ends` with their
    cumulative sum at the end of each block."""
    total = 0.0
    for number in range(len(ends)):
        block = logits[number * BLOCK : (number + 1) * BLOCK]
        added = np.float32(0)
        for at in range(len(block)):
            exponent = (block[at] - top) * factor
            prob = power_of_two(exponent)
            block[at] = np.float32(0) if exponent < MIN_EXPONENT else prob
            added += block[at]
        total += added
        ends[number] = total
    return total


@compiled
def _pick_token(probs, ends, threshold):
    """The first token where the cumulative sum passes the threshold, or the last before it of nonzero probability."""
    number = min(np.searchsorted(ends, threshold, side="right"), len(ends) - 1)
    while number and ends[number] == ends[number - 1]:
        number -= 1
    total = ends[number - 1] if number else 0.0
    token = number * BLOCK
    for at in range(number * BLOCK, min((number + 1) * BLOCK, len(probs))):
        if probs[at] > 0:
            total += probs[at]
            token = at
            if total > threshold:
                break
    return token


def whole_chunk(whole: Completion) -> Chunk:
    """A completion as the only chunk of its stream."""
    return Chunk(
        tokens=whole.tokens,
        logprobs=whole.logprobs,
        text=whole.text,
        stop=whole.stop,
        policy_version=whole.policy_version,
    )


def max_new_tokens(tokens: Sequence[int], sampling: Sampling, context: int) -> int:
    """The number of tokens that may be generated after `tokens`; 0 if the context is full. Raises SleuthError for a
    prompt that does not fit."""
    if not 0 < len(tokens) <= context:
        raise SleuthError(f"a prompt of {len(tokens)} tokens does not fit: the context holds 1 to {context}")
    return max(0, min(sampling.max_tokens, context - len(tokens)))


class StopTokens:
    """The tokens that may end a completion: end-of-text tokens, and tokens whose text contains the last character of a
    stop string. After any other token the text need not be checked."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, vocabulary: int, eos_ids: Collection[int]) -> None:
        self.tokenizer = tokenizer
        self.is_eos = np.zeros(vocabulary, dtype=bool)
        self.is_eos[[token for token in eos_ids if token < vocabulary]] = True
        self._texts: list[str] = []
        self._masks: dict[frozenset[str], np.ndarray] = {frozenset(): self.is_eos}

    def mask(self, stops: Sequence[str]) -> np.ndarray:
        """(V) bool. All True if a last character may span tokens, or be lost when a token is decoded alone."""
        characters = frozenset(stop[-1] for stop in stops if stop)
        if characters not in self._masks:
            self._masks[characters] = self.is_eos | self._containing(characters)
        return self._masks[characters]

    def _containing(self, characters: Collection[str]) -> np.ndarray:
        if any(not character.isascii() or character.isspace() for character in characters):
            return np.ones_like(self.is_eos)
        self._texts = self._texts or [decode(self.tokenizer, [token]) for token in range(len(self.is_eos))]
        return np.array([any(character in text for character in characters) for text in self._texts], dtype=bool)


class Request:
    """A prompt with its sampling parameters. `inbox` receives the `Completion`, or the exception if the engine failed.

    At most `limit` tokens are generated; `slot` is None until the request runs. If it is preempted, `written` and
    `logprobs` keep what it has generated, and it continues from there.
    """

    streams = False
    """Whether `inbox` receives a `Chunk` for every token."""

    def __init__(
        self, prompt: Sequence[int], sampling: Sampling, *, limit: int, tokenizer: PreTrainedTokenizerFast
    ) -> None:
        self.prompt = list(prompt)
        self.sampling = sampling
        self.limit = limit
        self.tokenizer = tokenizer
        self.slot: int | None = None
        self.written: list[int] = []
        self.logprobs = np.zeros(0, dtype=np.float32)
        self.stop: StopReason | None = None
        self.inbox: asyncio.Queue[Chunk | Completion | BaseException] = asyncio.Queue()
        self._longest_stop = max((len(stop.encode()) for stop in sampling.stops), default=0)

    def update(
        self, tokens: np.ndarray, logprobs: np.ndarray, *, eos_ids: Collection[int], policy_version: int | None
    ) -> None:
        """Takes all n tokens generated so far. Sets `stop` and completes the request if the last token is in `eos_ids`,
        completes a stop string or reaches `limit`."""
        written = tokens.tolist()
        ended = bool(written) and written[-1] in eos_ids
        visible = written[:-1] if ended else written
        text = self._text_to_stop(visible)
        if text is not None:
            self.stop = "stop"
        elif ended or len(written) >= self.limit:
            self.stop = "eos" if ended else "length"
            text = self._text(visible)
        if self.stop is not None and text is not None:
            self.inbox.put_nowait(
                Completion(
                    tokens=tuple(written),
                    logprobs=tuple(logprobs.tolist()),
                    text=text,
                    stop=self.stop,
                    policy_version=policy_version,
                )
            )

    def _text_to_stop(self, written: list[int]) -> str | None:
        """The text through the stop string that the last token completed, or None. A token has at least one byte, so
        decoding the last few tokens suffices for the check."""
        if (
            not self._longest_stop
            or stop_end(self._text(written, last=self._longest_stop), self.sampling.stops) is None
        ):
            return None
        text = self._text(written)
        return text[: stop_end(text, self.sampling.stops)]

    def _text(self, written: list[int], last: int | None = None) -> str:
        """The text of `written`, or of its `last` tokens, decoded behind the tokens before them: some tokenizers drop
        the space at the beginning of a text."""
        run = written if last is None else written[-last:]
        before = (self.prompt[-CHARACTER_TOKENS:] + written[: len(written) - len(run)])[-CHARACTER_TOKENS:]
        known = decode(self.tokenizer, before)
        if known.endswith(UNFINISHED):  # the context ends inside a character that `run` does not complete
            before, known = [], ""
        return decode(self.tokenizer, before + run)[len(known) :]


class StreamRequest(Request):
    """A request whose `inbox` receives one `Chunk` per token."""

    streams = True

    def __init__(
        self, prompt: Sequence[int], sampling: Sampling, *, limit: int, tokenizer: PreTrainedTokenizerFast
    ) -> None:
        super().__init__(prompt, sampling, limit=limit, tokenizer=tokenizer)
        self._decoder = IncrementalDecoder(tokenizer, context=prompt)
        self._scanner = StopScanner(sampling.stops)

    def update(
        self, tokens: np.ndarray, logprobs: np.ndarray, *, eos_ids: Collection[int], policy_version: int | None
    ) -> None:
        """Like `Request.update`, but called after every token."""
        last = tokens[-1:].tolist()
        ended = bool(last) and last[0] in eos_ids
        piece, stopped = self._scanner.feed(self._decoder.flush() if ended or not last else self._decoder.push(last[0]))
        if stopped:
            self.stop = "stop"
        elif ended:
            self.stop = "eos"
        elif len(tokens) >= self.limit:
            self.stop = "length"
            piece += self._decoder.flush()
        self.inbox.put_nowait(
            Chunk(
                tokens=tuple(last),
                logprobs=tuple(logprobs[-1:].tolist()),
                text=piece,
                stop=self.stop,
                policy_version=policy_version,
            )
        )
