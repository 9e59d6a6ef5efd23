"""The samplers: our engine, `generate`, and continuous batching, on the same requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from benchmarks.workloads import Request
from sleuth.engines.local.engine import LocalEngine
from sleuth.learn.models import fit_threads
from sleuth.types import Sampling

SLOTS = 256
CONTEXT = 1_024


class Sampler(Protocol):
    """Samples `length` tokens for every request, at temperature 1 over the whole vocabulary."""

    def write(self, requests: Sequence[Request]) -> list[list[int]]: ...


class OurSampler:
    """The in-process engine with `SLOTS` slots; all requests are handed over at once."""

    def __init__(self, model: Path) -> None:
        self.engine = open_engine(model)

    def write(self, requests: Sequence[Request]) -> list[list[int]]:
        """The tokens of every request, and their log-probabilities, which an update needs."""
        return asyncio.run(self._write(requests))

    async def _write(self, requests: Sequence[Request]) -> list[list[int]]:
        limits = [Sampling(max_tokens=request.length, key=(0, 0, 0, *request.key, 0)) for request in requests]
        jobs = [self.engine.complete(request.prompt, limit) for request, limit in zip(requests, limits, strict=True)]
        return [list(completion.tokens) for completion in await asyncio.gather(*jobs)]


class GenerateSampler:
    """`model.generate` on `rows` requests at a time, in order of arrival. A batch runs until its longest is done: the
    lengths of the others are not known in advance."""

    def __init__(self, model: Path, *, rows: int, cache: str | None = None) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(model)
        self.rows = rows
        self.cache = cache

    def write(self, requests: Sequence[Request]) -> list[list[int]]:
        """The tokens of every request; those beyond its length are discarded."""
        batches = [requests[first : first + self.rows] for first in range(0, len(requests), self.rows)]
        return [tokens for batch in batches for tokens in self._batch(batch)]

    def _batch(self, batch: Sequence[Request]) -> list[list[int]]:
        longest = max(len(request.prompt) for request in batch)
        padded = [[0] * (longest - len(request.prompt)) + list(request.prompt) for request in batch]
        mask = [[0] * (longest - len(request.prompt)) + [1] * len(request.prompt) for request in batch]
        config = sampling_config(max(request.length for request in batch), cache_implementation=self.cache)
        with torch.inference_mode():
            written = self.model.generate(
                input_ids=torch.tensor(padded), attention_mask=torch.tensor(mask), generation_config=config
            )
        return [row[: request.length] for row, request in zip(written[:, longest:].tolist(), batch, strict=True)]


class ContinuousSampler:
    """Transformers' continuous batching, opened and warmed up before the clock runs. It shares the blocks of equal
    prompts and admits requests as others end: at most `requests` at once, which read at most `tokens` tokens a
    forward."""

    def __init__(self, model: Path, *, requests: int, tokens: int, attention: str) -> None:
        from transformers import ContinuousBatchingConfig  # only this peer needs it

        self.model: Any = AutoModelForCausalLM.from_pretrained(model, attn_implementation=attention)
        config = ContinuousBatchingConfig(
            page_size=32, num_blocks=SLOTS * CONTEXT // 32, max_batch_tokens=tokens, max_requests_per_batch=requests
        )
        self.manager = self.model.init_continuous_batching(sampling_config(), config)
        self.manager.warmup()
        self.manager.start()

    def write(self, requests: Sequence[Request]) -> list[list[int]]:
        """The tokens of every request."""
        names = [
            self.manager.add_request(list(request.prompt), max_new_tokens=request.length, eos_token_id=-1)
            for request in requests
        ]
        done: dict[str, list[int]] = {}
        while len(done) < len(names):
            result = self.manager.get_result(timeout=600)
            if result is None:
                raise RuntimeError("continuous batching stopped without finishing its requests")
            if result.is_finished():
                done[result.request_id] = result.generated_tokens
        return [done[name] for name in names]

    def close(self) -> None:
        """Ends the thread that samples."""
        self.manager.stop(block=True)


SAMPLERS = {"ours": OurSampler, "generate": GenerateSampler, "continuous_batching": ContinuousSampler}


def open_engine(model: Path) -> LocalEngine:
    """Our engine on a model folder, with a tokenizer that ends no text."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.eos_token = None
    loaded = AutoModelForCausalLM.from_pretrained(model)
    fit_threads(loaded)
    return LocalEngine(loaded, tokenizer, slots=SLOTS, context=CONTEXT)


def sampling_config(tokens: int | None = None, **more: Any) -> GenerationConfig:
    """Sampling with full support, without an end token."""
    whole = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "eos_token_id": None, "pad_token_id": 0}
    return GenerationConfig(max_new_tokens=tokens, disable_compile=True, **whole, **more)
