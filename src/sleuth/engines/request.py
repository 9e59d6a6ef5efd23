"""One completion on its way, from the prompt to the stop."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import numpy as np
from transformers import PreTrainedTokenizerFast

from sleuth.engines.stops import StopScanner, end_of_stop
from sleuth.render import CHARACTER_TOKENS, UNFINISHED, IncrementalDecoder, decode
from sleuth.types import Chunk, Completion, Sampling, SleuthError, StopReason


def room_for(tokens: Sequence[int], sampling: Sampling, context: int) -> int:
    """How many tokens may be written after `tokens`: none where the context is full. Raises SleuthError for a prompt
    that it cannot hold."""
    if not 0 < len(tokens) <= context:
        raise SleuthError(f"a prompt of {len(tokens)} tokens does not fit: the context holds 1 to {context}")
    return max(0, min(sampling.max_tokens, context - len(tokens)))


class Request:
    """What was asked, and the inbox of the caller who waits for it: there is the `Completion`, once there is one, or
    the exception if the engine failed.

    `limit` is the most tokens it may write, `slot` where it runs, once it does. Nothing is decoded until a token was
    written that can complete a stop string.
    """

    listens = False
    """Whether the caller wants to hear of every token."""

    def __init__(
        self, prompt: Sequence[int], sampling: Sampling, *, limit: int, tokenizer: PreTrainedTokenizerFast
    ) -> None:
        self.prompt = list(prompt)
        self.sampling = sampling
        self.limit = limit
        self.tokenizer = tokenizer
        self.slot: int | None = None
        self.stop: StopReason | None = None
        self.inbox: asyncio.Queue[Chunk | Completion | BaseException] = asyncio.Queue()
        self._longest_stop = max((len(stop.encode()) for stop in sampling.stops), default=0)

    def look(
        self, tokens: np.ndarray, logprobs: np.ndarray, *, ends: Collection[int], policy_version: int | None
    ) -> None:
        """All n tokens written so far: sets `stop` and answers if the last is one of `ends`, completes a stop string or
        is the last allowed."""
        written = tokens.tolist()
        ended = bool(written) and written[-1] in ends
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
        """The text through the stop string that the last token completed, if it did. A token has at least one byte, so
        the last few tokens tell."""
        if (
            not self._longest_stop
            or end_of_stop(self._text(written, last=self._longest_stop), self.sampling.stops) is None
        ):
            return None
        text = self._text(written)
        return text[: end_of_stop(text, self.sampling.stops)]

    def _text(self, written: list[int], last: int | None = None) -> str:
        """The text of what was written, or only of its `last` tokens, after the few before them: some tokenizers drop
        the space at the beginning of a text."""
        run = written if last is None else written[-last:]
        before = (self.prompt[-CHARACTER_TOKENS:] + written[: len(written) - len(run)])[-CHARACTER_TOKENS:]
        known = decode(self.tokenizer, before)
        if known.endswith(UNFINISHED):  # the text before ends inside a character: not ours to finish
            before, known = [], ""
        return decode(self.tokenizer, before + run)[len(known) :]


class StreamRequest(Request):
    """A request whose caller finds a `Chunk` a token in `inbox`."""

    listens = True

    def __init__(
        self, prompt: Sequence[int], sampling: Sampling, *, limit: int, tokenizer: PreTrainedTokenizerFast
    ) -> None:
        super().__init__(prompt, sampling, limit=limit, tokenizer=tokenizer)
        self._decoder = IncrementalDecoder(tokenizer, context=prompt)
        self._scanner = StopScanner(sampling.stops)

    def look(
        self, tokens: np.ndarray, logprobs: np.ndarray, *, ends: Collection[int], policy_version: int | None
    ) -> None:
        """As for a request, after every token."""
        last = tokens[-1:].tolist()
        ended = bool(last) and last[0] in ends
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
