"""One completion on its way, from the prompt to the stop."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from transformers import PreTrainedTokenizerFast

from sleuth.engines.sampling import uniforms
from sleuth.engines.stops import StopScanner
from sleuth.render import IncrementalDecoder
from sleuth.types import Chunk, Completion, Sampling, StopReason


class Request:
    """What was asked, what was written so far, and the inbox of the caller who waits for it.

    A caller who listens finds a `Chunk` a token in `inbox`, one who does not finds the `Completion` only; either finds
    the exception if the engine failed. `limit` is the most tokens it may write, `slot` where it runs, once it does.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        limit: int,
        tokenizer: PreTrainedTokenizerFast,
        listens: bool,
    ) -> None:
        self.sequence = list(prompt)  # all tokens: the prompt, then what was sampled
        self.sampling = sampling
        self.limit = limit
        self.listens = listens
        self.slot: int | None = None
        self.stop: StopReason | None = None
        self.inbox: asyncio.Queue[Chunk | Completion | BaseException] = asyncio.Queue()
        self._prompt_length = len(prompt)
        self._draws: list[float] = []
        self._logprobs: list[float] = []
        self._pieces: list[str] = []
        self._decoder = IncrementalDecoder(tokenizer, context=prompt)
        self._scanner = StopScanner(sampling.stops)

    def next_draw(self) -> float:
        """The random number for the next token."""
        if not self._draws:
            self._draws = uniforms(self.sampling.key, self.limit)
        return self._draws[len(self._logprobs)]

    def accept(self, token: int, logprob: float, *, ends: Collection[int], policy_version: int) -> None:
        """Add a sampled token; sets `stop` if it is one of `ends`, completes a stop string or is the last allowed."""
        self.sequence.append(token)
        self._logprobs.append(logprob)
        piece, stopped = self._scanner.feed(self._decoder.flush() if token in ends else self._decoder.push(token))
        if stopped:
            self.stop = "stop"
        elif token in ends:
            self.stop = "eos"
        elif len(self._logprobs) >= self.limit:
            self.stop = "length"
            piece += self._decoder.flush()
        self._pieces.append(piece)
        if self.listens:
            self.inbox.put_nowait(
                Chunk(tokens=(token,), logprobs=(logprob,), text=piece, stop=self.stop, policy_version=policy_version)
            )
        elif self.stop is not None:
            self.inbox.put_nowait(self._completion(self.stop, policy_version))

    def decline(self, policy_version: int) -> None:
        """End before the first token: there is no room for one."""
        self.stop = "length"
        if self.listens:
            chunk = Chunk(tokens=(), logprobs=(), text="", stop="length", policy_version=policy_version)
            self.inbox.put_nowait(chunk)
        else:
            self.inbox.put_nowait(self._completion("length", policy_version))

    def _completion(self, stop: StopReason, policy_version: int) -> Completion:
        return Completion(
            tokens=tuple(self.sequence[self._prompt_length :]),
            logprobs=tuple(self._logprobs),
            text="".join(self._pieces),
            stop=stop,
            policy_version=policy_version,
        )
