"""The in-process engine: continuous batching on the learner's own module."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.engines.local.attention import PAGED_ATTENTION, Batch, DecodeWeights, Kernels, decode_forwards
from sleuth.engines.local.batching import BatchingEngine
from sleuth.engines.local.cache import PagedCache, bytes_per_token, head_size, pages_of
from sleuth.engines.local.decode_graphs import DecodeGraphs
from sleuth.engines.local.lean_forward import LeanForward
from sleuth.engines.local.paged_attention import decode_problem, prefill_problem
from sleuth.engines.local.slots import UNKNOWN, DecodeState, PendingTokens, PrefillChunk, SampledTokens, SlotTable
from sleuth.engines.sampling import Request, StopTokens, sample, sample_on_device, sampling_problem
from sleuth.host.disk import shown
from sleuth.host.threads import to_stderr
from sleuth.host.variables import cuda_graphs
from sleuth.kernels.card_pass import PAGE
from sleuth.kernels.device import is_out_of_memory, keep_freed_memory, sent
from sleuth.kernels.layers import compiled_forwards, select_outputs, skip_unused_outputs
from sleuth.kernels.matmul import replaced_forwards
from sleuth.learn.models import plain_reason
from sleuth.types import SleuthError

CPU_FORWARD_TOKENS, CUDA_FORWARD_TOKENS = 512, 8192
"""Prefill tokens per forward, besides the decoding slots; longer prompts are prefilled in chunks. More would push the
activations out of a processor's cache; fewer would leave a card idle between kernels."""
MIN_FORWARD_TOKENS = 64
"""A forward that runs out of memory is not tried with fewer."""

HELD_STEPS = 32
"""With CUDA graphs, prompts are read in one forward of 33 at most: it is launched kernel by kernel, and takes as long
as about ten decode steps that are graphs."""

FITTING_SHARE = 0.95
"""The share of a card's free memory that the cache may take when it is opened again."""


class LocalEngine(BatchingEngine):
    """Samples by continuous batching with a paged KV cache, and reuses prefixes across turns and between siblings.

    The cache takes at most `cache_memory` ("8GB", "40%" of the device's memory; None: a share of what is free), or has
    `cache_pages`. When it is full, the request with the last key is preempted and continued later, with the same
    tokens. The same requests, keys, weights and size of the cache give the same bytes. With `lookahead` (None: on a
    card) a step begins before the host has read the tokens of the one before, and with `graphs` (None: on a card,
    unless SLEUTH_CUDA_GRAPHS is 0) steps in which nothing is prefilled are CUDA graphs. `resized` is called with the
    pages of a cache that had to shrink. Raises SleuthError if the cache cannot hold one sequence of `context` tokens.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        slots: int,
        context: int,
        cache_memory: str | None = None,
        cache_pages: int | None = None,
        lookahead: bool | None = None,
        graphs: bool | None = None,
        log: Callable[[str], None] = to_stderr,
        resized: Callable[[int], None] = lambda pages: None,
    ) -> None:
        if (why := plain_reason(model.config, trains=False)) is not None:
            raise SleuthError(f"{why}: sleuth.engines.local.plain_engine.open_engine opens an engine for this model")
        super().__init__(model, tokenizer, slots=slots, context=context)
        keep_freed_memory()
        self.cache_memory = cache_memory
        self._log, self._resized = log, resized
        vocabulary = cast(nn.Linear, model.get_output_embeddings()).weight.shape[0]
        self._stop_tokens = StopTokens(tokenizer, vocabulary, self._eos_ids)
        self._decode_state = DecodeState(slots=slots, context=context, vocabulary=vocabulary)
        self._weights = DecodeWeights(model)
        self._lean = LeanForward.on_card(model, log)
        self._swift = [*compiled_forwards(model), *decode_forwards(model)]
        self._forward_tokens = CUDA_FORWARD_TOKENS if model.device.type == "cuda" else CPU_FORWARD_TOKENS
        ahead = model.device.type == "cuda" if lookahead is None else lookahead
        self._sampled = SampledTokens(slots, model.device) if ahead else None
        graphs = model.device.type == "cuda" and cuda_graphs() if graphs is None else graphs
        self._graphs = DecodeGraphs(self._logits, log) if ahead and graphs else None
        limits = {"slots": slots, "context": context, "cache_memory": cache_memory}
        token_bytes = bytes_per_token(model.config, model.dtype)
        self._open_cache(pages_of(token_bytes, model.device, **limits, recorded=cache_pages))
        self._steps_without_chunks = HELD_STEPS

    @property
    def cache_pages(self) -> int:
        """The size of the cache in pages."""
        return self._table.pages.total

    def publish(self, version: int) -> None:
        """Clears the prefix cache and stamps `version` on later completions. Call after changing the weights."""
        super().publish(version)
        self._table.clear()
        self._weights.clear()
        if self._lean is not None:
            self._lean.clear()
        if self._graphs is not None:
            self._graphs.clear()

    # -- the cache ---------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        if self._sampled is not None:
            self._sampled.take()

    def _forget(self) -> None:
        self._table.clear()
        self._clear_cache()

    def _fit_cache(self) -> None:
        """Before the cache takes memory on a card: shrinks it to what has been left free since its size was chosen."""
        token_bytes = bytes_per_token(self.model.config, self.model.dtype)
        free = torch.cuda.mem_get_info(self.model.device)[0]
        if self.cache_pages * PAGE * token_bytes <= free * FITTING_SHARE:
            return
        limits = {"slots": self.slots, "context": self.context, "cache_memory": None}
        pages = min(self.cache_pages, pages_of(token_bytes, self.model.device, **limits))
        self._open_cache(pages)
        self._resized(pages)
        self._log(f"{shown(free)} are free on the card: the cache holds {pages * PAGE} tokens from now on")

    def _open_cache(self, pages: int) -> None:
        """An empty cache of so many pages. No request may be running."""
        spare = int(self._graphs is not None)  # for rows that fill up a graph
        self._cache = PagedCache(pages=pages + spare, page_size=PAGE)
        self._table = SlotTable(self.slots, self.context, page_size=PAGE, pages=pages)

    def _clear_cache(self) -> None:
        """Frees the cache and the graphs that read it."""
        if self._graphs is not None:
            self._graphs.clear()
        self._cache.clear()

    def _shrink(self) -> bool:
        """After a forward ran out of memory: preempts all requests and halves the cache and the tokens of a forward.
        Returns whether anything could be halved."""
        least = -(-self.context // PAGE)
        pages, tokens = max(least, self.cache_pages // 2), max(MIN_FORWARD_TOKENS, self._forward_tokens // 2)
        if pages == self.cache_pages and tokens == self._forward_tokens:
            return False
        while self._running:
            self._preempt()
        self._clear_cache()
        self._open_cache(pages)
        self._resized(pages)
        self._forward_tokens = tokens
        self._log(
            f"out of memory while sampling: continuing with a cache of {pages * PAGE} tokens and {tokens} "
            "tokens of prompts at once"
        )
        return True

    def _preempt(self) -> None:
        """Puts the running request with the last key back among the waiting ones and frees its pages."""
        slot, request = max(self._running.items(), key=lambda item: item[1].sampling.key)
        written = slice(len(request.prompt), int(self._table.length[slot]))
        request.written = self._table.tokens[slot, written].tolist()
        request.logprobs = self._decode_state.logprobs[slot, written].copy()
        self._release(request)
        self._table.evict(slot)
        bisect.insort(self._waiting, request, key=lambda waiting: waiting.sampling.key)
        self.preemptions += 1

    def _release(self, request: Request) -> None:
        if request.slot is not None:
            if self._sampled is not None:
                self._table.trim(request.slot)
            self._table.release(request.slot)
            del self._running[request.slot]
            request.slot = None

    def _admit(self) -> None:
        if self.model.device.type == "cuda" and not self._running and not self._cache.layers:
            self._fit_cache()
        self._begin_ready()
        for request in self._waiting:
            tokens = request.prompt + request.written
            placement = self._table.place(tokens)
            if placement is None:
                break
            slot, length = placement.slot, len(request.prompt)
            if self._table.occupy(placement, tokens):
                self._count_reused(placement.reused)
            watched = request.streams or self._stop_tokens.mask(request.sampling.stops)
            self._decode_state.begin(slot, request.sampling, length=length, limit=request.limit, watched=watched)
            self._decode_state.logprobs[slot, length : len(tokens)] = request.logprobs
            self._running[slot] = request
            request.slot = slot
            self.tokens_prefilled += len(tokens)
        self._waiting = [request for request in self._waiting if request.slot is None]

    def _begin_ready(self) -> None:
        """Starts requests that waited for a prefix."""
        for placement in self._table.take_ready():
            self._count_reused(placement.reused)

    def _count_reused(self, tokens: int) -> None:
        self.tokens_reused += tokens
        self.tokens_prefilled -= tokens

    def _schedule(self) -> tuple[np.ndarray, list[PrefillChunk]] | None:
        """The slots and chunks of the next forward, after preempting requests until its pages are free. None if all
        requests ended with the tokens that the last forward sampled."""
        hold = self._graphs is not None and self._graphs.problem is None and self._steps_without_chunks < HELD_STEPS
        while (scheduled := self._table.schedule(self._forward_tokens, hold=hold)) is None:
            if not self._take_pending():
                self._preempt()
            elif not self._running:
                return None
            self._begin_ready()
        self._steps_without_chunks = 0 if scheduled[1] else self._steps_without_chunks + 1
        self._cache.copy(self._table.pages.take_copies())
        return scheduled

    def _step(self) -> None:
        """One forward over all running slots; samples a token for each slot whose prompt is fully prefilled. If memory
        runs out, nothing has changed but the size of the cache."""
        try:
            if (scheduled := self._schedule()) is not None:
                self._forward_and_sample(*scheduled)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self._take_pending()
            if not self._shrink():
                raise

    def _forward_and_sample(self, decoding: np.ndarray, chunks: Sequence[PrefillChunk]) -> None:
        if not chunks and self._decode_by_graph(decoding):
            return
        table, model = self._table, self.model
        where = {"device": model.device, "dtype": model.dtype, "kernels": self._kernels}
        by_slot = None if self._sampled is None else self._sampled.by_slot
        batch = Batch(table, decoding, chunks, self._cache, sampled=by_slot, **where)
        done = np.array([chunk.stop == table.length[chunk.slot] for chunk in chunks], dtype=bool)
        slots = np.concatenate([decoding, np.array([chunk.slot for chunk in chunks], dtype=np.int64)[done]])
        last = np.concatenate([np.arange(len(decoding)), len(decoding) + batch.chunk_ends[done] - 1])
        logits = self._forward(batch, last)
        table.cached[decoding] += 1
        for chunk in chunks:
            table.cached[chunk.slot] = chunk.stop
        if not len(slots):
            self._take_pending()
        else:
            self._sample(slots, logits)

    def _decode_by_graph(self, slots: np.ndarray) -> bool:
        """Decodes a token of `slots` (B) and samples the next by a CUDA graph. Returns False if there is none."""
        if self._graphs is None or self._sampled is None or self._graphs.is_refused(self._kernels):
            return False
        tokens = self._graphs.decode(self._table, slots, self._decode_state, self._cache, self._sampled.by_slot)
        if tokens is None:
            return False
        self.forwards += 1
        self._table.cached[slots] += 1
        self._expect_tokens(self._sampled, slots, tokens)
        return True

    @cached_property
    def _kernels(self) -> Kernels:
        """The kernels that compute attention here; logs what a card does without, sampling included."""
        asked = self.model.device, self.model.dtype, head_size(self.model.config)
        problems = decode_problem(*asked), prefill_problem(*asked), sampling_problem(*asked[:2])
        instead = "pads keys while decoding", "reads prompts one by one", "samples by forty launches a step"
        if self.model.device.type == "cuda":
            for problem, way in zip(problems, instead, strict=True):
                if problem is not None:
                    self._log(f"the engine {way}, which is slow, as the kernel for it does not work here: {problem}")
        decoding, prefilling, _ = (problem is None for problem in problems)
        return Kernels(decoding=decoding, prefilling=prefilling)

    def _forward(self, batch: Batch, last: np.ndarray) -> torch.Tensor:
        """The logits (B, V) after the batch's tokens at `last` (B): the decoding ones, and the last of each chunk that
        ends its prompt."""
        if self._lean is not None:
            logits = self._lean(batch)[: len(last)]  # only the last chunk may end inside its prompt
        elif len(last) == len(batch.tokens):
            logits = self._logits(batch)
        else:
            outputs = sent(last, self.model.device)
            batch.output_indices = select_outputs(outputs, len(batch.tokens))
            with nullcontext() if batch.output_indices is None else skip_unused_outputs(self.model, "batch"):
                logits = self._logits(batch, logits_to_keep=outputs)
        self.forwards += 1  # not one that ran out of memory
        return logits

    def _logits(self, batch: Batch, **options: torch.Tensor) -> torch.Tensor:
        """The logits (T, V) of the batch's tokens, or of those that the options name."""
        if self._lean is not None:
            return self._lean(batch)
        tokens = {"input_ids": batch.tokens[None], "position_ids": batch.positions[None]}
        return self.model(**tokens, use_cache=False, batch=batch, **options).logits[0]

    def _sample(self, slots: np.ndarray, logits: torch.Tensor) -> None:
        """Samples a token for each of `slots` (B) from its `logits` (B, V). With lookahead the tokens stay on the
        device for the next step, and the host reads those of the last step, while this one runs."""
        decode_state, positions = self._decode_state, self._table.length[slots]
        settings = decode_state.temperatures[slots], decode_state.draws[slots, positions]
        if self._sampled is None:
            tokens, logprobs = sample(logits, *settings)
            self._table.append(slots, tokens)
            self._take_tokens(slots, positions, tokens, logprobs)
        else:
            self._expect_tokens(self._sampled, slots, sample_on_device(logits, *settings))

    def _expect_tokens(self, sampled: SampledTokens, slots: np.ndarray, tokens: torch.Tensor) -> None:
        """Continues `slots` (B) by the `tokens` (2, B), unknown as they are, and takes those of the step before."""
        table, positions = self._table, self._table.length[slots]
        sampled.store(slots, tokens)
        requests = [self._running[slot] for slot in slots.tolist()]
        before = sampled.wait_for(tokens, slots, positions, requests)
        table.append(slots, np.full(len(slots), UNKNOWN))
        table.pause(slots[table.length[slots] >= self._decode_state.max_length[slots]])
        self._take(before)

    def _take_pending(self) -> bool:
        """Takes the tokens that are being sampled, once they are there. Returns whether there were any."""
        pending = None if self._sampled is None else self._sampled.take()
        self._take(pending)
        return pending is not None

    def _take(self, pending: PendingTokens | None) -> None:
        """Stores the tokens of a step, but for those of requests that had ended before it, or that nobody waits for."""
        if pending is None:
            return
        tokens, logprobs = pending.read()
        running = [self._running.get(slot) for slot in pending.slots.tolist()]
        kept = np.array([one is other for one, other in zip(running, pending.requests, strict=True)], dtype=bool)
        slots, positions, tokens = pending.slots[kept], pending.positions[kept], tokens[kept]
        self._table.tokens[slots, positions] = tokens
        self._take_tokens(slots, positions, tokens, logprobs[kept])

    def _take_tokens(self, slots: np.ndarray, positions: np.ndarray, tokens: np.ndarray, logprobs: np.ndarray) -> None:
        """Stores the log-probabilities of the `tokens` (B) sampled at `positions` (B) of `slots` (B), and updates
        requests that may have ended."""
        table, decode_state = self._table, self._decode_state
        if not math.isfinite(logprobs.sum()):
            raise SleuthError("the model's logits are not finite: its weights have diverged or do not fit its dtype")
        decode_state.logprobs[slots, positions] = logprobs
        self.tokens_sampled += len(slots)
        due = decode_state.due(slots, positions + 1, tokens)
        for slot, stop in zip(slots[due].tolist(), (positions[due] + 1).tolist(), strict=True):
            request = self._running[slot]
            written = slice(len(request.prompt), stop)
            self._update_request(request, table.tokens[slot, written], decode_state.logprobs[slot, written])

    @contextmanager
    def _inference_mode(self) -> Iterator[None]:
        """Runs with the engine's attention, in evaluation mode and without gradients; restores the model afterwards."""
        if self._lean is not None:  # which calls no module of it
            with torch.inference_mode():
                yield
            return
        config = self.model.config
        attention = config._attn_implementation
        config._attn_implementation = PAGED_ATTENTION
        try:
            with super()._inference_mode(), self._weights.installed(), replaced_forwards(self._swift):
                yield
        finally:
            config._attn_implementation = attention
