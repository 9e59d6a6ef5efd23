"""The local engine behind the endpoints of vLLM or SGLang, over real HTTP on loopback, in a thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from listening import listening
from starlette.middleware.base import BaseHTTPMiddleware, DispatchFunction
from starlette.routing import Route
from starlette.types import ASGIApp
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from emulator.app import emulator_app
from emulator.engine import EmulatedEngine
from emulator.faults import Faults
from sleuth.types import Completion, Sampling

KINDS = ("vllm", "sglang")
ROUNDING = 1e-4
"""Log-probabilities of the same fp32 weights differ by less: where measured, by 1.4e-5 at most in other batches or on
other ranks. Before and after an update some of every turn differed by 0.08 or more."""


@dataclass
class EmulatedServer:
    """A server at `url`, and its engine."""

    url: str
    engine: EmulatedEngine

    def fault(self, **faults: Any) -> int:
        """Sets the faults; returns the number of completions requested so far."""
        return httpx.post(f"{self.url}/faults", json=faults).raise_for_status().json()["asked"]


@contextmanager
def emulated_server(
    kind: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    *,
    name: str = "tiny",
    context: int = 256,
    slots: int = 32,
    raw: bool | None = None,
    broadcast: bool = False,
    max_rank: int | None = None,
    instead: Mapping[str, ASGIApp] | None = None,
    around: DispatchFunction | None = None,
    **faults: Any,
) -> Iterator[EmulatedServer]:
    """A server that uses `model` itself, which therefore must not be the learner's object. `instead` answers paths,
    `around` passes requests on."""
    engine = EmulatedEngine(model, tokenizer, slots=slots, context=context, seconds=60)
    engine.max_rank = max_rank
    app = emulator_app(kind, name, engine, faults=Faults(**faults), raw=raw, broadcast=broadcast)
    app.router.routes[:0] = [Route(path, answer) for path, answer in (instead or {}).items()]
    if around is not None:
        app.add_middleware(BaseHTTPMiddleware, dispatch=around)
    with listening(app) as url:
        yield EmulatedServer(url, engine)


def repeat_within_rounding(servers: Sequence[EmulatedServer]) -> None:
    """Has these servers answer a turn at temperature 1 as the one of them did that was asked for it first, if both had
    the same weights but for rounding.

    Rounding depends on what else is in a batch, and so on time. It moves a small loss in the fifth digit; and a draw
    that falls between two tokens, as near to the border as that, is now this one and now that one.
    """
    first: dict[tuple[tuple[int, ...], tuple[int, ...]], Completion] = {}

    def repeating(engine: EmulatedEngine) -> None:
        write = engine.write

        async def repeat(prompt: Sequence[int], sampling: Sampling) -> tuple[Completion, str]:
            completion, label = await write(prompt, sampling)
            before = first.setdefault((tuple(prompt), sampling.key), completion)
            logprobs = completion.logprobs or ()
            if completion.tokens != before.tokens:
                logprobs = await engine.raw_logprobs(prompt, before.tokens)
            gaps = (abs(one - other) for one, other in zip(logprobs, before.logprobs or (), strict=True))
            return (before if max(gaps) < ROUNDING else completion), label

        engine.write = repeat

    for server in servers:
        repeating(server.engine)
