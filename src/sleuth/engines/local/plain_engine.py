"""The engine of this process for models that the paged cache does not fit: transformers' own forward and cache."""

from __future__ import annotations

import bisect
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.engines.local.batching import BatchingEngine
from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.sampling import Request, sample, uniforms
from sleuth.host.threads import to_stderr
from sleuth.kernels.device import is_out_of_memory, release_cached_memory
from sleuth.learn.models import check_family, plain_reason
from sleuth.types import SleuthError

TOLERANCE, TOLERANCE_16_BITS = 1e-3, 0.2
"""Largest root mean square of the difference of two ways to the same logits, in standard deviations of these."""


def open_engine(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    *,
    slots: int,
    context: int,
    log: Callable[[str], None] = to_stderr,
    **cache: Any,
) -> BatchingEngine:
    """The engine of this process for a model: `LocalEngine`, with the options `cache`, or `PlainEngine`, which has none
    of them. Raises SleuthError for a model that neither runs."""
    check_family(model.config)
    limits = {"slots": slots, "context": context, "log": log}
    if plain_reason(model.config, trains=False) is None:
        return LocalEngine(model, tokenizer, **limits, **cache)
    return PlainEngine(model, tokenizer, **limits)


class PlainEngine(BatchingEngine):
    """Samples by transformers' own forward, in batches of rows that are read whole when they begin: no prefix is
    reused. The batch begins again, as slots allow, once half of its rows have ended or twice as many could run. Rows of
    different lengths are padded on the left if this changes no logits of the model; else a batch has one length.

    The draws are those of `LocalEngine`, and the same requests, keys and weights give the same bytes, unless memory
    runs out, which halves `slots`. Raises SleuthError for a model whose cache gives other logits than its texts.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        slots: int,
        context: int,
        log: Callable[[str], None] = to_stderr,
    ) -> None:
        super().__init__(model, tokenizer, slots=slots, context=context)
        self._log = log
        self._takes_positions = "position_ids" in inspect.signature(type(model).forward).parameters
        self._batch: list[Request] = []
        self._draws: list[np.ndarray] = []  # one for each token of each row
        self._mask = torch.zeros(0)  # (B, L) int64: 1 for a token, 0 for padding
        self._cache: Any = None  # transformers' own; None before the batch is read
        with self._inference_mode():
            self._pads = self._require_exact()

    def _admit(self) -> None:
        candidates = sorted([*self._running.values(), *self._waiting], key=lambda request: request.sampling.key)
        candidates = candidates[: self.slots]
        if not self._pads and candidates:
            length = _length(candidates[0])
            candidates = [request for request in candidates if _length(request) == length]
        if 2 * len(self._running) > max(len(self._batch), len(candidates)):
            return
        self._interrupt()
        self._batch = candidates
        self._waiting = [request for request in self._waiting if all(request is not other for other in candidates)]
        self._running = dict(enumerate(candidates))
        for slot, request in self._running.items():
            request.slot = slot
        self._draws = [uniforms(request.sampling.key, request.limit) for request in candidates]

    def _step(self) -> None:
        try:
            logits = self._read() if self._cache is None else self._decode()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error) or self.slots == 1:
                raise
            self._interrupt()
            release_cached_memory()
            self.slots = max(1, self.slots // 2)
            self._log(f"out of memory while sampling: continuing with slots = {self.slots}")
            return
        self.forwards += 1
        rows = sorted(self._running)
        requests = [self._running[row] for row in rows]
        temperatures = np.array([request.sampling.temperature for request in requests])
        draws = np.array([self._draws[row][len(self._running[row].written)] for row in rows])
        tokens, logprobs = sample(logits[rows], temperatures, draws)
        if not np.isfinite(logprobs).all():
            raise SleuthError("the model's logits are not finite: its weights have diverged or do not fit its dtype")
        self.tokens_sampled += len(rows)
        for request, token, logprob in zip(requests, tokens.tolist(), logprobs, strict=True):
            request.written.append(token)
            request.logprobs = np.append(request.logprobs, logprob)
            self._update_request(request, np.array(request.written), request.logprobs)

    def _read(self) -> Tensor:
        """The logits (B, V) after all tokens of the batch."""
        texts = [request.prompt + request.written for request in self._batch]
        self.tokens_prefilled += sum(map(len, texts))
        return self._logits_after(texts)

    def _decode(self) -> Tensor:
        """The logits (B, V) after one more token of each row; of rows that have ended, any."""
        tokens = torch.tensor([[request.written[-1]] for request in self._batch])
        self._mask = torch.cat([self._mask, torch.ones_like(tokens)], dim=1)
        return self._forward(tokens)

    def _forward(self, tokens: Tensor) -> Tensor:
        """The logits (B, V) after `tokens` (B, n), the last ones of the mask."""
        inputs = {"input_ids": tokens, "attention_mask": self._mask}
        if self._takes_positions:
            inputs["position_ids"] = (self._mask.cumsum(dim=1) - 1).clamp(0, self.context - 1)[:, -tokens.shape[1] :]
        inputs = {name: tensor.to(self.model.device) for name, tensor in inputs.items()}
        output = self.model(**inputs, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        self._cache = output.past_key_values
        return output.logits[:, -1]

    def _interrupt(self) -> None:
        """Puts what runs back among what waits; it goes on with the tokens that it has."""
        for request in [*self._running.values()]:
            self._release(request)
            bisect.insort(self._waiting, request, key=lambda waiting: waiting.sampling.key)
            self.preemptions += 1

    def _release(self, request: Request) -> None:
        if request.slot is not None:
            del self._running[request.slot]
            request.slot = None
        if not self._running:
            self._forget()

    def _forget(self) -> None:
        self._batch, self._draws, self._cache = [], [], None

    def _require_exact(self) -> bool:
        """Whether padding on the left leaves the logits as they are. Raises SleuthError unless reading a text and going
        on by the cache gives the logits of the text with one more token."""
        text = list(range(1, 8))
        [whole] = self._logits_after([text])
        self._logits_after([text[:-1]])
        self._mask = torch.ones(1, len(text), dtype=torch.int64)
        [cached] = self._forward(torch.tensor([text[-1:]]))
        if not _are_close(cached, whole):
            raise SleuthError(
                f"{type(self.model).__name__} cannot run in this process: its cache gives other logits than its text; "
                'let servers sample, with [stage.engine] launch = "vllm"'
            )
        beside_longer = self._logits_after([text, text * 2])[0]
        self._forget()
        return _are_close(beside_longer, whole)

    def _logits_after(self, texts: Sequence[list[int]]) -> Tensor:
        """The logits (B, V) after B texts, padded on the left, which begin a new cache."""
        longest = max(map(len, texts))
        tokens = torch.tensor([[0] * (longest - len(text)) + text for text in texts])
        self._mask = torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in texts])
        self._cache = None
        return self._forward(tokens)


def _are_close(one: Tensor, other: Tensor) -> bool:
    bound = TOLERANCE if other.dtype == torch.float32 else TOLERANCE_16_BITS
    return bool((one.float() - other.float()).square().mean().sqrt() <= bound * other.float().std())


def _length(request: Request) -> int:
    return len(request.prompt) + len(request.written)
