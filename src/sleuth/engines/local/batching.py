"""What the engines of this process share: requests that wait in the order of their keys, and the loop over steps."""

from __future__ import annotations

import asyncio
import bisect
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.engines.sampling import Request, StreamRequest, max_new_tokens
from sleuth.own.calls import calls_returned
from sleuth.render import find_eos_ids
from sleuth.types import Chunk, Completion, Sampling

ARRIVAL_YIELDS = 8
"""Times to yield to the event loop before a forward, so that callers with a pending request join its batch."""

Received = TypeVar("Received", Chunk, Completion)


class BatchingEngine(ABC):
    """Continues token sequences with `model`, at most `slots` at once, of at most `context` tokens each; further
    requests wait and are admitted in the order of `sampling.key`. The weights are the learner's own: call `publish`
    after changing them."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, slots: int, context: int) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.slots = slots
        self.context = context
        self.policy_version = 0
        self.tokens_prefilled = 0
        self.tokens_reused = 0
        self.tokens_sampled = 0
        self.preemptions = 0
        self.forwards = 0
        self._eos_ids = find_eos_ids(model.generation_config, tokenizer)
        self._waiting: list[Request] = []
        self._running: dict[int, Request] = {}  # by slot
        self._yields_left = 0  # of the event loop, before the next forward
        self._loop_task: asyncio.Task[None] | None = None

    # -- what a subclass computes ------------------------------------------------------------------------------------

    @abstractmethod
    def _admit(self) -> None:
        """Moves requests that wait to free slots."""

    @abstractmethod
    def _step(self) -> None:
        """One forward, and the tokens that it samples."""

    @abstractmethod
    def _release(self, request: Request) -> None:
        """Frees the slot of a request, if it has one."""

    @abstractmethod
    def _forget(self) -> None:
        """Frees everything that was computed. Nothing is running."""

    @contextmanager
    def _inference_mode(self) -> Iterator[None]:
        """In evaluation mode and without gradients; restores the model afterwards."""
        training = self.model.training
        if training:
            self.model.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            if training:
                self.model.train()

    def _end(self) -> None:
        """Called after the last step of a loop; drops what is still being computed, and unused."""
        return

    # -- what callers use --------------------------------------------------------------------------------------------

    async def stream(self, tokens: Sequence[int], sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        """Continue `tokens`, a chunk a token. Closing the iterator early frees the slot."""
        request = self._submit(tokens, sampling, StreamRequest)
        try:
            while request.stop is None or not request.inbox.empty():
                yield await _receive(request, Chunk)
        finally:
            self._cancel(request)

    async def complete(self, tokens: Sequence[int], sampling: Sampling) -> Completion:
        """Continue `tokens` until a stop."""
        request = self._submit(tokens, sampling, Request)
        try:
            return await _receive(request, Completion)
        finally:
            self._cancel(request)

    @property
    def running(self) -> int:
        """The number of requests that occupy a slot."""
        return len(self._running)

    def publish(self, version: int) -> None:
        """Stamps `version` on later completions, which reuse nothing. Call after changing the weights."""
        if self._running or self._waiting:
            raise RuntimeError(f"weights {version} were published while requests of {self.policy_version} are running")
        self.policy_version = version

    def sleep(self) -> None:
        """Frees the memory of the cache until the next request, unless requests are running."""
        if not self._running and not self._waiting:
            self._forget()

    def figures(self) -> dict[str, float]:
        """No metrics of a step."""
        return {}

    # -- requests ----------------------------------------------------------------------------------------------------

    def _submit(self, tokens: Sequence[int], sampling: Sampling, kind: type[Request]) -> Request:
        limit = max_new_tokens(tokens, sampling, self.context)
        request = kind(tokens, sampling, limit=limit, tokenizer=self.tokenizer)
        if limit < 1:
            self._update_request(request, np.zeros(0, dtype=np.int64), np.zeros(0))
            return request
        bisect.insort(self._waiting, request, key=lambda waiting: waiting.sampling.key)
        self._yields_left = ARRIVAL_YIELDS
        if self._loop_task is None:
            self._loop_task = asyncio.create_task(self._run_loop())
            self._loop_task.add_done_callback(lambda task: task.cancelled() or task.exception())  # its callers have it
        return request

    def _update_request(self, request: Request, tokens: np.ndarray, logprobs: np.ndarray) -> None:
        request.update(tokens, logprobs, eos_ids=self._eos_ids, policy_version=self.policy_version)
        if request.stop is not None or request.streams:
            self._yields_left = ARRIVAL_YIELDS
        if request.stop is not None:
            self._release(request)

    def _cancel(self, request: Request) -> None:
        """Removes a request whose caller has finished or gone."""
        if request.stop is None and request in self._waiting:
            self._waiting.remove(request)
        self._release(request)

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def _run_loop(self) -> None:
        """Runs while there are requests. An exception is passed to every caller."""
        try:
            while self._waiting or self._running:
                await self._wait_for_callers()
                with self._inference_mode():
                    self._admit()
                    if self._running:
                        self._step()
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._end()
            self._loop_task = None

    async def _wait_for_callers(self) -> None:
        """Yields until callers that just got an answer had time to send their next request, the user's environments and
        tools included."""
        await asyncio.sleep(0)
        while True:
            while self._yields_left > 1:
                self._yields_left -= 1
                await asyncio.sleep(0)
            if not await calls_returned():
                return
            self._yields_left = ARRIVAL_YIELDS

    def _fail(self, error: BaseException) -> None:
        requests = [*self._waiting, *self._running.values()]
        self._waiting.clear()
        for request in requests:
            self._release(request)
            request.inbox.put_nowait(error)
        self._forget()


async def _receive(request: Request, kind: type[Received]) -> Received:
    item = await request.inbox.get()
    if isinstance(item, kind):
        return item
    assert isinstance(item, BaseException)
    raise item
