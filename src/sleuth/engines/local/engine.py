"""The in-process engine: continuous batching on the learner's own module."""

from __future__ import annotations

import asyncio
import bisect
import math
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TypeVar, cast

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.engines.local.attention import SLOT_ATTENTION, Batch
from sleuth.engines.local.cache import SlotCache
from sleuth.engines.local.slots import DecodeState, SlotPlacement, SlotTable
from sleuth.engines.local.weights import DecodeWeights
from sleuth.engines.request import Request, StreamRequest, max_new_tokens
from sleuth.engines.sampling import sample
from sleuth.engines.stops import StopTokens, find_eos_ids
from sleuth.learn.compiled_layers import compiled_forwards
from sleuth.learn.heap import keep_freed_memory
from sleuth.learn.last_layer import select_outputs, skip_unused_outputs
from sleuth.learn.products import replaced_forwards
from sleuth.types import Chunk, Completion, Sampling, SleuthError
from sleuth.user_code.calls import calls_returned

FORWARD_TOKENS = 512
"""Prefill tokens per forward, besides the decoding slots; longer prompts are prefilled in chunks. More would push the
activations out of the processor's cache."""

ARRIVAL_YIELDS = 8
"""Times to yield to the event loop before a forward, so that callers with a pending request join its batch."""

Received = TypeVar("Received", Chunk, Completion)


class LocalEngine:
    """Continues token sequences with `model`: continuous batching, prefix reuse across turns and between siblings.

    `slots` sequences of at most `context` tokens run at once; further requests wait and are admitted in the order of
    `sampling.key`. The weights are the learner's own: call `publish` after changing them. The same requests, keys and
    weights give the same bytes.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, slots: int, context: int) -> None:
        if not model._supports_attention_backend:
            raise SleuthError(f"the local engine cannot run {type(model).__name__}: its attention is not replaceable")
        keep_freed_memory()
        self.model = model
        self.tokenizer = tokenizer
        self.context = context
        self.policy_version = 0
        self.tokens_prefilled = 0
        self.tokens_reused = 0
        self.tokens_sampled = 0
        self.forwards = 0
        self._eos_ids = find_eos_ids(model.generation_config, tokenizer)
        vocabulary = cast(nn.Linear, model.get_output_embeddings()).weight.shape[0]
        self._stop_tokens = StopTokens(tokenizer, vocabulary, self._eos_ids)
        self._decode_state = DecodeState(slots=slots, context=context, vocabulary=vocabulary)
        self._weights = DecodeWeights(model)
        self._swift = compiled_forwards(model)
        self._cache = SlotCache(slots=slots, context=context)
        self._table = SlotTable(slots, context)
        self._waiting: list[Request] = []
        self._running: dict[int, Request] = {}  # by slot
        self._yields_left = 0  # of the event loop, before the next forward
        self._loop_task: asyncio.Task[None] | None = None

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
        """Clears the prefix cache and stamps `version` on later completions. Call after changing the weights."""
        if self._running or self._waiting:
            raise RuntimeError(f"weights {version} were published while requests of {self.policy_version} are running")
        self._table.clear()
        self._weights.clear()
        self.policy_version = version

    def sleep(self) -> None:
        """No-op: the weights are the learner's own, so there is no memory to release until the next `publish`."""

    def figures(self) -> dict[str, float]:
        """Engine metrics for the step: none."""
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

    def _release(self, request: Request) -> None:
        if request.slot is not None:
            self._table.release(request.slot)
            del self._running[request.slot]
            request.slot = None

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

    def _admit(self) -> None:
        self._copy_prefixes(list(self._table.take_ready()))
        for request in self._waiting:
            placement = self._table.place(request.prompt)
            if placement is None:
                break
            slot, length = placement.slot, len(request.prompt)
            self._cache.reserve(length + request.limit, self._table.cached)
            if self._table.occupy(placement, request.prompt):
                self._copy_prefixes([placement])
            watched = request.streams or self._stop_tokens.mask(request.sampling.stops)
            self._decode_state.begin(slot, request.sampling, length=length, limit=request.limit, watched=watched)
            self._running[slot] = request
            request.slot = slot
            self.tokens_prefilled += length
        self._waiting = [request for request in self._waiting if request.slot is None]

    def _copy_prefixes(self, placements: Sequence[SlotPlacement]) -> None:
        self._cache.copy(placements)
        reused = sum(placement.reused for placement in placements)
        self.tokens_reused += reused
        self.tokens_prefilled -= reused

    def _step(self) -> None:
        """One forward over all running slots; samples a token for each slot whose prompt is fully prefilled."""
        table = self._table
        decoding, chunks = table.schedule(FORWARD_TOKENS)
        model = self.model
        batch = Batch(table.tokens, table.cached, decoding, chunks, self._cache, device=model.device, dtype=model.dtype)
        done = np.array([chunk.stop == table.length[chunk.slot] for chunk in chunks], dtype=bool)
        slots = np.concatenate([decoding, np.array([chunk.slot for chunk in chunks], dtype=np.int64)[done]])
        logits = self._forward(batch, np.concatenate([np.arange(len(decoding)), batch.chunk_ends[done] - 1]))
        table.cached[decoding] += 1
        for chunk in chunks:
            table.cached[chunk.slot] = chunk.stop
        if len(slots):
            self._sample_tokens(slots, logits)

    def _forward(self, batch: Batch, last: np.ndarray) -> torch.Tensor:
        """The logits (B, V) after the batch's tokens at `last` (B)."""
        outputs = torch.from_numpy(last).to(self.model.device)
        batch.output_indices = select_outputs(outputs, len(batch.tokens))
        with nullcontext() if batch.output_indices is None else skip_unused_outputs(self.model, "batch"):
            output = self.model(
                input_ids=batch.tokens[None],
                position_ids=batch.positions[None],
                use_cache=False,
                logits_to_keep=0 if len(last) == len(batch.tokens) else outputs,
                batch=batch,
            )
        self.forwards += 1
        return output.logits[0]

    def _sample_tokens(self, slots: np.ndarray, logits: torch.Tensor) -> None:
        """Samples a token for each of `slots` (B) from its `logits` (B, V); updates requests that may have ended."""
        table, decode_state = self._table, self._decode_state
        positions = slots, table.length[slots]
        tokens, logprobs = sample(logits, decode_state.temperatures[slots], decode_state.draws[positions])
        if not math.isfinite(logprobs.sum()):
            raise SleuthError("the model's logits are not finite: its weights have diverged or do not fit its dtype")
        decode_state.logprobs[positions] = logprobs
        table.append(slots, tokens)
        self.tokens_sampled += len(slots)
        for slot in slots[decode_state.due(slots, table.length[slots], tokens)].tolist():
            request = self._running[slot]
            written = slice(len(request.prompt), int(table.length[slot]))
            self._update_request(request, table.tokens[slot, written], decode_state.logprobs[slot, written])

    def _fail(self, error: BaseException) -> None:
        requests = [*self._waiting, *self._running.values()]
        self._waiting.clear()
        for request in requests:
            self._release(request)
            request.inbox.put_nowait(error)
        self._table.clear()
        self._cache.clear()

    @contextmanager
    def _inference_mode(self) -> Iterator[None]:
        """Runs with the engine's attention, in evaluation mode and without gradients; restores the model afterwards."""
        config, training = self.model.config, self.model.training
        attention = config._attn_implementation
        config._attn_implementation = SLOT_ATTENTION
        if training:
            self.model.eval()
        try:
            with torch.inference_mode(), self._weights.installed(), replaced_forwards(self._swift):
                yield
        finally:
            config._attn_implementation = attention
            if training:
                self.model.train()


async def _receive(request: Request, kind: type[Received]) -> Received:
    item = await request.inbox.get()
    if isinstance(item, kind):
        return item
    assert isinstance(item, BaseException)
    raise item
