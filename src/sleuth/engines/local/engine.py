"""The in-process engine: the learner's own module writes the tokens, many requests a forward."""

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
from sleuth.engines.request import Request, StreamRequest, room_for
from sleuth.engines.sampling import sample
from sleuth.engines.stops import StopTokens, end_tokens
from sleuth.learn.compiled_layers import compiled_forwards
from sleuth.learn.heap import keep_freed_memory
from sleuth.learn.last_layer import select_outputs, skip_unused_outputs
from sleuth.learn.products import replaced_forwards
from sleuth.types import Chunk, Completion, Sampling, SleuthError

FORWARD_TOKENS = 512
"""New tokens one forward reads, besides those that are written; longer prompts are read in parts. With more, what
passes between the layers leaves the processor's cache."""

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
        keep_freed_memory()
        self.model = model
        self.tokenizer = tokenizer
        self.context = context
        self.policy_version = 0
        self.tokens_prefilled = 0
        self.tokens_reused = 0
        self.tokens_sampled = 0
        self.forwards = 0
        self._ends = end_tokens(model.generation_config, tokenizer)
        vocabulary = cast(nn.Linear, model.get_output_embeddings()).weight.shape[0]
        self._stop_tokens = StopTokens(tokenizer, vocabulary, self._ends)
        self._decode_state = DecodeState(slots=slots, context=context, vocabulary=vocabulary)
        self._weights = DecodeWeights(model)
        self._swift = compiled_forwards(model)
        self._cache = SlotCache(slots=slots, context=context)
        self._table = SlotTable(slots, context)
        self._waiting: list[Request] = []
        self._running: dict[int, Request] = {}  # by slot
        self._rounds = 0  # of the event loop, before the next forward
        self._driver: asyncio.Task[None] | None = None

    async def stream(self, tokens: Sequence[int], sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        """Continue `tokens`, a chunk a token. Closing the iterator early frees the slot."""
        request = self._submit(tokens, sampling, StreamRequest)
        try:
            while request.stop is None or not request.inbox.empty():
                yield await _receive(request, Chunk)
        finally:
            self._withdraw(request)

    async def complete(self, tokens: Sequence[int], sampling: Sampling) -> Completion:
        """Continue `tokens` until a stop."""
        request = self._submit(tokens, sampling, Request)
        try:
            return await _receive(request, Completion)
        finally:
            self._withdraw(request)

    @property
    def running(self) -> int:
        """How many requests hold a slot."""
        return len(self._running)

    def publish(self, version: int) -> None:
        """The weights have changed: forget what was read with the old ones, stamp `version` on what is written next."""
        if self._running or self._waiting:
            raise RuntimeError(f"weights {version} were published while requests of {self.policy_version} are running")
        self._table.forget()
        self._weights.forget()
        self.policy_version = version

    def rest(self) -> None:
        """Nothing is asked until the next `publish`. The weights are the learner's own: there is nothing to give
        back."""

    def figures(self) -> dict[str, float]:
        """What of the engine's work belongs into a step's row: nothing can happen to this one."""
        return {}

    # -- requests ----------------------------------------------------------------------------------------------------

    def _submit(self, tokens: Sequence[int], sampling: Sampling, kind: type[Request]) -> Request:
        limit = room_for(tokens, sampling, self.context)
        request = kind(tokens, sampling, limit=limit, tokenizer=self.tokenizer)
        if limit < 1:
            self._look(request, np.zeros(0, dtype=np.int64), np.zeros(0))
            return request
        bisect.insort(self._waiting, request, key=lambda waiting: waiting.sampling.key)
        self._rounds = ROUNDS_OF_ARRIVAL
        if self._driver is None:
            self._driver = asyncio.create_task(self._drive())
        return request

    def _look(self, request: Request, tokens: np.ndarray, logprobs: np.ndarray) -> None:
        request.look(tokens, logprobs, ends=self._ends, policy_version=self.policy_version)
        if request.stop is not None or request.listens:
            self._rounds = ROUNDS_OF_ARRIVAL
        if request.stop is not None:
            self._release(request)

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
                await self._arrivals()
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

    async def _arrivals(self) -> None:
        """Give way to the callers, until those who were just answered had time to ask again."""
        await asyncio.sleep(0)
        while self._rounds > 1:
            self._rounds -= 1
            await asyncio.sleep(0)

    def _admit(self) -> None:
        self._bring(list(self._table.arrived()))
        for request in self._waiting:
            place = self._table.place(request.prompt)
            if place is None:
                break
            length = len(request.prompt)
            self._cache.reserve(length + request.limit, self._table.read)
            if self._table.occupy(place, request.prompt):
                self._bring([place])
            watched = request.listens or self._stop_tokens.of(request.sampling.stops)
            self._decode_state.begin(place.slot, request.sampling, length=length, limit=request.limit, watched=watched)
            self._running[place.slot] = request
            request.slot = place.slot
            self.tokens_prefilled += length
        self._waiting = [request for request in self._waiting if request.slot is None]

    def _bring(self, places: Sequence[SlotPlacement]) -> None:
        """What requests reuse comes to their slots."""
        self._cache.copy(places)
        reused = sum(place.reused for place in places)
        self.tokens_reused += reused
        self.tokens_prefilled -= reused

    def _step(self) -> None:
        """One forward over all running slots, and a token for each that has been read to its end."""
        table = self._table
        writing, runs = table.unread(FORWARD_TOKENS)
        model = self.model
        batch = Batch(table.tokens, table.read, writing, runs, self._cache, device=model.device, dtype=model.dtype)
        done = np.array([run.stop == table.length[run.slot] for run in runs], dtype=bool)  # read to the end
        slots = np.concatenate([writing, np.array([run.slot for run in runs], dtype=np.int64)[done]])
        logits = self._forward(batch, np.concatenate([np.arange(len(writing)), batch.ends[done] - 1]))
        table.read[writing] += 1
        for run in runs:
            table.read[run.slot] = run.stop
        if len(slots):
            self._write(slots, logits)

    def _forward(self, batch: Batch, last: np.ndarray) -> torch.Tensor:
        """Read the batch; the logits (B, V) after its tokens at `last` (B)."""
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

    def _write(self, slots: np.ndarray, logits: torch.Tensor) -> None:
        """Sample a token for each of `slots` (B) by its `logits` (B, V), and answer the callers whose slot is done."""
        table, decode_state = self._table, self._decode_state
        places = slots, table.length[slots]
        tokens, logprobs = sample(logits, decode_state.temperatures[slots], decode_state.draws[places])
        if not math.isfinite(logprobs.sum()):
            raise SleuthError("the model's logits are not finite: its weights have diverged or do not fit its dtype")
        decode_state.logprobs[places] = logprobs
        table.append(slots, tokens)
        self.tokens_sampled += len(slots)
        for slot in slots[decode_state.due(slots, table.length[slots], tokens)].tolist():
            request = self._running[slot]
            written = slice(len(request.prompt), int(table.length[slot]))
            self._look(request, table.tokens[slot, written], decode_state.logprobs[slot, written])

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
            with torch.inference_mode(), self._weights.at_work(), replaced_forwards(self._swift):
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
