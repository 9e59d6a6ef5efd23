"""Pools of emulated servers, whose turns are compared with those of the engine in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import torch
from emulator.model_server import free_url
from emulator.served import EmulatedServer
from real_vllm import RealVllm
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.engines.launch import SGLANG_RESERVED
from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.remote.pool import PoolEngine, PoolLimits
from sleuth.engines.remote.roster import Roster
from sleuth.engines.remote.server import discover_server, discover_servers
from sleuth.engines.remote.weight_sync import EngineReplica
from sleuth.ranks import ALONE, Ranks
from sleuth.render import find_eos_ids
from sleuth.types import Completion, Engine, Sampling

CONTEXT = 256
ENOUGH = {"vllm": CONTEXT, "sglang": CONTEXT + SGLANG_RESERVED}
Requests = Sequence[tuple[list[int], Sampling]]


@dataclass
class Pools:
    """Opens pools for a learner, which publish into `folder`."""

    learner: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    folder: Path
    words: Callable[..., list[int]]
    context: int = CONTEXT
    lines: list[str] = field(default_factory=list)
    """What the pool that was opened last said."""

    def open(
        self,
        servers: Sequence[EmulatedServer | RealVllm],
        *,
        learner: PreTrainedModel | None = None,
        folder: Path | None = None,
        temperature: float = 1.0,
        published: bool = True,
        ranks: Ranks = ALONE,
        listed: Callable[[], Sequence[str]] | None = None,
        **limits: object,
    ) -> PoolEngine:
        """A pool that has published version 1 unless told otherwise; with servers that are `listed` at any time."""
        self.lines = []
        eos_ids = find_eos_ids(self.learner.generation_config, self.tokenizer)
        probed = {"tokenizer": self.tokenizer, "eos_ids": eos_ids, "context": self.context, "temperature": temperature}
        log = self.lines.append
        found = partial(discover_servers, **probed, log=log)
        engine = PoolEngine(
            [discover_server(server.url, tokenizer=self.tokenizer, eos_ids=eos_ids) for server in servers],
            learner or self.learner,
            self.tokenizer,
            eos_ids=eos_ids,
            context=self.context,
            temperature=temperature,
            limits=PoolLimits(
                **{"requests_at_once": 16, "seconds": 30.0, "unavailable_timeout": 30.0, "sleeps": False} | limits
            ),
            shared=folder or self.folder,
            log=log,
            ranks=ranks,
            roster=None if listed is None else Roster(listed, lambda url: found([url])[0], log),
        )
        if published:
            engine.publish(1)
        return engine

    def sampled(self, *, groups: int = 4, siblings: int = 4, **how: object) -> Requests:
        """A turn of every sibling of every group."""
        settings = {"max_tokens": 24} | how
        return [
            (self.words(9, group), Sampling(key=(0, 0, 1, group, sample, 0), **settings))
            for group in range(groups)
            for sample in range(siblings)
        ]

    def written_here(self, requests: Requests, learner: PreTrainedModel | None = None) -> list[Completion]:
        """Turns of the engine in this process."""
        return asked(LocalEngine(learner or self.learner, self.tokenizer, slots=8, context=self.context), requests)

    def require_learners_turns(self, engine: PoolEngine, learner: PreTrainedModel | None = None) -> list[Completion]:
        """Greedy turns of a pool, which are those of the learner in this process."""
        requests = self.sampled(temperature=0.0)
        turns = asked(engine, requests)
        require_same_turns(turns, self.written_here(requests, learner))
        return turns


def asked(engine: Engine, requests: Requests) -> list[Completion]:
    """The turns of all requests side by side."""

    async def ask() -> list[Completion]:
        return list(await asyncio.gather(*(engine.complete(tokens, sampling) for tokens, sampling in requests)))

    return asyncio.run(ask())


def require_same_turns(turns: Sequence[Completion], others: Sequence[Completion]) -> None:
    """The same but for rounding."""
    for one, other in zip(turns, others, strict=True):
        assert (one.tokens, one.text, one.stop) == (other.tokens, other.text, other.stop)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@contextmanager
def away(replica: EngineReplica, url: str | None = None) -> Iterator[EngineReplica]:
    """Nobody is where the pool looks for this server, or another one at `url`."""
    before = replica.server.url
    object.__setattr__(replica.server, "url", url or free_url())
    yield replica
    object.__setattr__(replica.server, "url", before)


def move(model: PreTrainedModel) -> None:
    """The learner has learned something."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.05)


def require_equal(server: EmulatedServer, model: PreTrainedModel) -> None:
    """The server has the model's weights, bit by bit."""
    served = server.engine._model.state_dict()
    assert all(torch.equal(served[name], weight) for name, weight in model.state_dict().items())
