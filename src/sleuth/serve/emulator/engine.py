"""The model behind a server that speaks as another: it writes, is paused, sleeps, and takes new weights."""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import ClassVar, TypeVar

import torch
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.remote.control import INITIAL_WEIGHTS
from sleuth.engines.remote.published import load_published
from sleuth.engines.stops import find_eos_ids
from sleuth.serve.emulator.faults import Trouble
from sleuth.serve.http.engine_thread import EngineThread
from sleuth.serve.http.limits import Limits
from sleuth.serve.http.refused import Refused
from sleuth.types import Completion, Sampling, SleuthError

WEIGHTS, KV_CACHE = "weights", "kv_cache"
"""The parts of its memory that a server gives up while it sleeps."""

Result = TypeVar("Result")


class Aborted(Exception):  # noqa: N818
    """Somebody asked for this completion to end."""


class EmulatedEngine:
    """Continues tokens with a model that can be changed. `label` is what its weights are called.

    While it is paused, or a part of its memory is `asleep`, completions wait. `stale` weights are taken by their name
    alone. All of it is called from the server's event loop; the model works in the thread of `room`.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, slots: int, context: int, limits: Limits
    ) -> None:
        self.tokenizer = tokenizer
        self.context = context
        self.label = INITIAL_WEIGHTS
        self.stale = False
        self.paused = False
        self.asleep: frozenset[str] = frozenset()
        self.eos_ids = find_eos_ids(model.generation_config, tokenizer)
        self.room = EngineThread(
            slots + limits.waiting, limits
        )  # the engine admits by key: all who wait are let in to it
        self._model = model
        self._first = {name: weight.clone() for name, weight in model.state_dict().items()}
        self._engine = LocalEngine(model, tokenizer, slots=slots, context=context)
        self._running: dict[str, asyncio.Future[Completion]] = {}
        self._open = asyncio.Event()
        self._open.set()

    @property
    def running(self) -> int:
        """Completions under way."""
        return len(self._running)

    async def write(self, name: str, prompt: Sequence[int], sampling: Sampling) -> tuple[Completion, str]:
        """The completion of a request called `name`, and what the weights are called that wrote it. Raises `Aborted`
        and `Refused`."""
        await self._open.wait()
        if name in self._running:
            raise Refused(400, f"a request called {name[:100]!r} is under way already")
        label = self.label
        work = asyncio.ensure_future(self._in_room(lambda: self._engine.complete(prompt, sampling)))
        self._running[name] = work
        try:
            return await work, label
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the client left
                work.cancel()
                raise
            raise Aborted from None
        finally:
            del self._running[name]

    async def raw_logprobs(self, prompt: Sequence[int], written: Sequence[int]) -> tuple[float, ...]:
        """What the model holds, at temperature 1, of tokens that were written behind a prompt."""

        async def score() -> tuple[float, ...]:
            tokens = torch.tensor([[*prompt, *written]], device=self._model.device)
            with torch.inference_mode():
                logits = self._model(input_ids=tokens).logits[0, len(prompt) - 1 : -1]
            chosen = logits.float().log_softmax(dim=-1).gather(1, tokens[0, len(prompt) :, None])
            return tuple(chosen[:, 0].tolist())

        return await self._in_room(score) if written else ()

    # -- what changes it ---------------------------------------------------------------------------------------------

    def abort(self, names: Sequence[str] | None = None) -> int:
        """End the completions of these names, or all; how many that were."""
        ended = [work for name, work in self._running.items() if names is None or name in names]
        for work in ended:
            work.cancel()
        return len(ended)

    async def pause(self, *, wait: bool = False) -> None:
        """No completion begins any more; those under way end now or, with `wait`, by themselves."""
        self._let(paused=True)
        await self._quiet(abort=not wait)

    def resume(self) -> None:
        """Go on."""
        self._let(paused=False)

    async def load(self, folder: Path, label: str | None) -> None:
        """Take the weights of a folder, and their name if one is given, once nothing is under way. Raises SleuthError
        where they do not fit; then nothing has changed."""
        was_paused = self.paused
        self._let(paused=True)
        try:
            await self._quiet()
            if not self.stale:
                await self._change(lambda: load_published(self._model, folder))
            self.label = label or self.label
        finally:
            self._let(paused=was_paused)

    async def forget(self) -> None:
        """What a restart does: whoever waits gets no answer, and the first weights are back under their first name."""
        await self._quiet(abort=True)
        await self._change(lambda: self._model.load_state_dict(self._first))
        self.label = INITIAL_WEIGHTS
        self._let(paused=False, asleep=frozenset())

    async def flush(self) -> bool:
        """Forget what was read, unless something is under way; whether it was done."""
        if self._running:
            return False
        await self._change(lambda: None)
        return True

    async def sleep(self, *parts: str, keeps_weights: bool = False) -> None:
        """Give up parts of the memory; what was under way ends. Unless it keeps them, the weights are lost."""
        self._let(asleep=self.asleep | set(parts))
        await self._quiet(abort=True)
        if WEIGHTS in parts and not keeps_weights:
            await self._change(lambda: _lose(self._model))

    def wake(self, *parts: str) -> None:
        """Take these parts back, with whatever is in them."""
        self._let(asleep=self.asleep - set(parts))

    def _let(self, *, paused: bool | None = None, asleep: frozenset[str] | None = None) -> None:
        self.paused = self.paused if paused is None else paused
        self.asleep = self.asleep if asleep is None else asleep
        if self.paused or self.asleep:
            self._open.clear()
        else:
            self._open.set()

    # -- the engine's thread -----------------------------------------------------------------------------------------

    async def _change(self, change: Callable[[], object]) -> None:
        async def work() -> SleuthError | None:
            try:
                change()
            except SleuthError as error:
                return error
            self._engine.publish(self._engine.policy_version + 1)
            return None

        if (error := await self._in_room(work)) is not None:
            raise error

    async def _in_room(self, work: Callable[[], Awaitable[Result]]) -> Result:
        async def only() -> AsyncGenerator[Result, None]:
            yield await work()

        async with aclosing(self.room.hear(only())) as heard:
            return await anext(heard)

    async def _quiet(self, *, abort: bool = False) -> None:
        """Until nothing is under way."""
        if abort:
            self.abort()
        while self._running:
            await asyncio.wait(list(self._running.values()))
            await asyncio.sleep(0)  # whoever waited for it goes on


def _lose(model: PreTrainedModel) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()


class EngineEmulator(ABC):
    """The endpoints of a server, over a `engine` that is called `name`. `raw` log-probabilities are those before
    temperature; None is as that server has it."""

    owner: ClassVar[str]
    """Whom its list of models names."""
    raw_by_default: ClassVar[bool]

    def __init__(self, name: str, engine: EmulatedEngine, trouble: Trouble, *, raw: bool | None = None) -> None:
        self.name = name
        self.engine = engine
        self.trouble = trouble
        self.raw = self.raw_by_default if raw is None else raw
        self.numbers = itertools.count()  # of completions, for those without a seed

    @abstractmethod
    def routes(self) -> list[Route]:
        """All that is spoken."""

    async def health(self, request: Request) -> Response:
        """Whether it can be asked: no words."""
        return Response(status_code=200 if self.engine.room.is_open else 503)

    async def logprobs(self, prompt: Sequence[int], written: Completion, sampling: Sampling) -> Sequence[float]:
        """Those of a completion, as this server tells them; of greedy ones both tell them at temperature 1."""
        if self.raw and sampling.temperature not in (0.0, 1.0):
            return await self.engine.raw_logprobs(prompt, written.tokens)
        return written.logprobs or ()
