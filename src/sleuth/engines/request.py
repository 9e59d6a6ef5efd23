"""One generation request of an engine, from the prompt to the stop, and where a stop string ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import numpy as np
from transformers import PreTrainedTokenizerFast

from sleuth.render import CHARACTER_TOKENS, UNFINISHED, IncrementalDecoder, StopScanner, decode, stop_end
from sleuth.types import Chunk, Completion, Sampling, SleuthError, StopReason


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
