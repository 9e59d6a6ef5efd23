"""The in-process engine: the learner's own module writes the tokens, many requests a forward."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.engines.attention import SLOT_ATTENTION, Batch, Row
from sleuth.engines.cache import SlotCache
from sleuth.engines.request import Request
from sleuth.engines.sampling import sample
from sleuth.engines.slots import SlotTable
from sleuth.types import Chunk, Completion, Sampling, SleuthError

FORWARD_TOKENS = 2048
"""New tokens one forward reads; longer prompts are read in parts."""

ROUNDS_OF_ARRIVAL = 8
"""How often the event loop goes round before a forward, so that callers who can ask now are all in it."""

Received = TypeVar("Received", Chunk, Completion)


class LocalEngine:
    """Continues token sequences with `model`: continuous batching, a cache kept across turns, shared prompts read once.

    `slots` sequences of at most `context` tokens run at once; more requests wait and are admitted in the order of
    `sampling.key`. The weights are the learner's own: after they have changed, call `publish`. The same requests, keys
    and weights give the same bytes. The counters are in tokens, but for `forwards`.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, slots: int, context: int) -> None:
        if not model._supports_attention_backend:
            raise SleuthError(f"the local engine cannot run {type(model).__name__}: its attention is not replaceable")
        self.model = model
        self.tokenizer = tokenizer
        self.context = context
        self.policy_version = 0
        self.tokens_prefilled = 0
        self.tokens_reused = 0
        self.tokens_sampled = 0
        self.forwards = 0
        self._ends = _end_tokens(model, tokenizer)
        self._cache = SlotCache(slots=slots, context=context)
        self._table = SlotTable(slots, context)
        self._waiting: list[Request] = []
        self._running: dict[int, Request] = {}  # by slot
        self._driver: asyncio.Task[None] | None = None

    async def stream(self, tokens: Sequence[int], sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        """Continue `tokens`, a chunk a token. Closing the iterator early frees the slot."""
        request = self._submit(tokens, sampling, listens=True)
        try:
            while request.stop is None or not request.inbox.empty():
                yield await _receive(request, Chunk)
        finally:
            self._withdraw(request)

    async def complete(self, tokens: Sequence[int], sampling: Sampling) -> Completion:
        """Continue `tokens` until a stop."""
        request = self._submit(tokens, sampling, listens=False)
        try:
            return await _receive(request, Completion)
        finally:
            self._withdraw(request)

    def publish(self, version: int) -> None:
        """The weights have changed: forget what was read with the old ones, stamp `version` on what is written next."""
        if self._running or self._waiting:
            raise RuntimeError(f"weights {version} were published while requests of {self.policy_version} are running")
        self._table.forget()
        self.policy_version = version

    # -- requests ----------------------------------------------------------------------------------------------------

    def _submit(self, tokens: Sequence[int], sampling: Sampling, *, listens: bool) -> Request:
        if not 0 < len(tokens) <= self.context:
            raise SleuthError(f"a prompt of {len(tokens)} tokens does not fit: the context holds 1 to {self.context}")
        limit = min(sampling.max_tokens, self.context - len(tokens))
        request = Request(tokens, sampling, limit=limit, tokenizer=self.tokenizer, listens=listens)
        if limit < 1:
            request.decline(self.policy_version)
            return request
        self._waiting.append(request)
        if self._driver is None:
            self._driver = asyncio.create_task(self._drive())
        return request

    def _withdraw(self, request: Request) -> None:
        """The caller has what it wanted, or wants no more."""
        if request.stop is None and request in self._waiting:
            self._waiting.remove(request)
        self._release(request)

    def _release(self, request: Request) -> None:
        if request.slot is not None:
            self._table.release(request.slot)
            del self._running[request.slot]
            request.slot = None

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        """Runs while there are requests. Whatever goes wrong reaches every caller."""
        try:
            while self._waiting or self._running:
                for _ in range(ROUNDS_OF_ARRIVAL):
                    await asyncio.sleep(0)
                with self._model_at_work():
                    self._admit()
                    if self._running:
                        self._step()
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._driver = None

    def _admit(self) -> None:
        self._waiting.sort(key=lambda request: request.sampling.key)
        for request in list(self._waiting):
            if len(self._running) == self._cache.slots:
                return
            place = self._table.place(request.sequence)
            if place is None:
                continue
            self._cache.reserve(len(request.sequence) + request.limit)
            if place.source != place.slot:
                self._cache.copy(place.source, place.slot, place.reused)
            self._waiting.remove(request)
            self._table.occupy(place.slot, request.sequence, read=place.reused)
            self._running[place.slot] = request
            request.slot = place.slot
            self.tokens_reused += place.reused
            self.tokens_prefilled += len(request.sequence) - place.reused

    def _step(self) -> None:
        """One forward over all running requests, and a token for each that has been read to its end."""
        rows = self._rows()
        logits = self._forward(rows)  # (B, V)
        for row in rows:
            self._table.read[row.slot] = row.start + len(row.tokens)
        requests = [self._running[row.slot] for row in rows]
        ready = [
            at for at, (row, request) in enumerate(zip(rows, requests, strict=True)) if _reads_to_end(row, request)
        ]
        if ready:
            self._sample([requests[at] for at in ready], logits if len(ready) == len(rows) else logits[ready])

    def _rows(self) -> list[Row]:
        """What each request has not read yet, in the order of slots, within the tokens of one forward."""
        rows = []
        left = FORWARD_TOKENS
        for slot in sorted(self._running):
            sequence = self._running[slot].sequence
            start = int(self._table.read[slot])
            unread = len(sequence) - start
            count = 1 if unread == 1 else min(unread, left)  # who is writing never waits for who is reading
            if count:
                rows.append(Row(slot=slot, start=start, tokens=sequence[start : start + count]))
                left = max(0, left - count)
        return rows

    def _forward(self, rows: Sequence[Row]) -> torch.Tensor:
        """Read the rows' tokens; the logits after each row's last, (B, V)."""
        batch = Batch(rows, self._cache, device=self.model.device, dtype=self.model.dtype)
        output = self.model(
            input_ids=batch.tokens[None],
            position_ids=batch.positions[None],
            use_cache=False,
            logits_to_keep=batch.last,
            batch=batch,
        )
        self.forwards += 1
        return output.logits[0]

    def _sample(self, requests: Sequence[Request], logits: torch.Tensor) -> None:
        temperatures = torch.tensor([request.sampling.temperature for request in requests], device=logits.device)
        draws = torch.tensor([request.next_draw() for request in requests], dtype=torch.float64, device=logits.device)
        tokens, logprobs = (drawn.tolist() for drawn in sample(logits, temperatures, draws))
        if not math.isfinite(sum(logprobs)):
            raise SleuthError("the model's logits are not finite: its weights have diverged or do not fit its dtype")
        for request, token, logprob in zip(requests, tokens, logprobs, strict=True):
            self._table.tokens[request.slot, len(request.sequence)] = token
            request.accept(token, logprob, ends=self._ends, policy_version=self.policy_version)
            if request.stop is not None:
                self._release(request)
        self.tokens_sampled += len(requests)

    def _fail(self, error: BaseException) -> None:
        requests = [*self._waiting, *self._running.values()]
        self._waiting.clear()
        for request in requests:
            self._release(request)
            request.inbox.put_nowait(error)
        self._table.forget()
        self._cache.clear()

    @contextmanager
    def _model_at_work(self) -> Iterator[None]:
        """The model with the engine's attention, in evaluation mode and without gradients; then as it was."""
        config, training = self.model.config, self.model.training
        attention = config._attn_implementation
        config._attn_implementation = SLOT_ATTENTION
        if training:
            self.model.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            config._attn_implementation = attention
            if training:
                self.model.train()


def _reads_to_end(row: Row, request: Request) -> bool:
    return row.start + len(row.tokens) == len(request.sequence)


async def _receive(request: Request, kind: type[Received]) -> Received:
    item = await request.inbox.get()
    if isinstance(item, kind):
        return item
    assert isinstance(item, BaseException)
    raise item


def _end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    """The tokens that end a text, by the model's generation config and by the tokenizer."""
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    ends = configured if isinstance(configured, list) else [configured]
    return frozenset(int(token) for token in [*ends, tokenizer.eos_token_id] if token is not None)
