"""The engine of an emulated server: completions, pause, sleep and weight loading."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import torch
from safetensors.torch import load_file
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from emulator.faults import FaultInjector
from sleuth.engines.local.plain_engine import open_engine
from sleuth.engines.remote.published import CARD, INITIAL_WEIGHTS, checksum
from sleuth.learn.adapters import CONFIG, PREFIX
from sleuth.learn.adapters import WEIGHTS as WEIGHTS_OF_ADAPTERS
from sleuth.render import find_eos_ids
from sleuth.serve.access import Limits
from sleuth.serve.engine_thread import EngineThread
from sleuth.types import Completion, Sampling, SleuthError

WEIGHTS, KV_CACHE = "weights", "kv_cache"
"""The parts of a server's memory that `sleep` releases."""
WAITING = 1024
"""Requests that may wait for a slot: a trainer sends all of them at once."""

NOTHING = Completion(tokens=(), logprobs=(), text="", stop=cast("Any", "abort"))
"""What there is of a completion that is aborted before its first token."""
Result = TypeVar("Result")


class EmulatedEngine:
    """Continues tokens with a model whose weights, named `label`, can be replaced; if `stale`, only their name is. It
    takes `adapters` of at most `max_rank` (None: as a server that was started without `--enable-lora`), and adds to the
    weights those that the newest request names.

    Completions wait while it is `paused` or a part of its memory is `asleep`. Call it from the server's event loop.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        slots: int,
        context: int,
        seconds: float = 600.0,
    ) -> None:
        self.tokenizer = tokenizer
        self.context = context
        self.label = INITIAL_WEIGHTS
        self.stale = False
        self.token_seconds = self.tail = 0.0  # see `Faults`
        self.turn_seconds = 0.0  # that its completions have taken, all together
        self.paused = False
        self.asleep: frozenset[str] = frozenset()
        self.eos_ids = find_eos_ids(model.generation_config, tokenizer)
        # All waiting requests are passed to the engine, which admits them by key.
        self.engine_thread = EngineThread(slots + WAITING, Limits(seconds=seconds))
        self.max_rank: int | None = None
        self.adapters: dict[str, Path] = {}
        self._adapter: str | None = None
        self._switching = asyncio.Lock()
        self._beneath: dict[str, torch.Tensor] = {}  # weights without the adapters that were added to them
        self._model = model
        self._initial_state = {name: weight.clone() for name, weight in model.state_dict().items()}
        self._engine = open_engine(model, tokenizer, slots=slots, context=context)
        self._running: list[asyncio.Future[Completion]] = []
        self._ready = asyncio.Event()
        self._ready.set()

    @property
    def running(self) -> int:
        """The number of running completions."""
        return len(self._running)

    async def write(self, prompt: Sequence[int], sampling: Sampling) -> tuple[Completion, str]:
        """The completion, and the label of its weights; with the stop "abort" what there was of it when aborted."""
        await self._ready.wait()
        label, started = self.label, time.monotonic()
        work = asyncio.ensure_future(self._write(prompt, sampling))
        self._running.append(work)
        try:
            return await work, label
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the client disconnected
                work.cancel()
                raise
            return NOTHING, label
        finally:
            self._running.remove(work)
            self.turn_seconds += time.monotonic() - started

    async def _write(self, prompt: Sequence[int], sampling: Sampling) -> Completion:
        """A completion, token after token at the set pace; the tokens until it is aborted."""
        started, drawn = time.monotonic(), random.Random(str(sampling.key)).lognormvariate(0.0, self.tail)
        whole = await self._in_engine_thread(lambda: self._engine.complete(prompt, sampling))
        seconds = self.token_seconds * drawn
        if not seconds:
            return whole
        try:
            await asyncio.sleep(started + seconds * len(whole.tokens) - time.monotonic())
        except asyncio.CancelledError:
            count = min(len(whole.tokens), int((time.monotonic() - started) / seconds))
            logprobs = (whole.logprobs or ())[:count]
            return replace(NOTHING, tokens=whole.tokens[:count], logprobs=logprobs)
        return whole

    async def raw_logprobs(self, prompt: Sequence[int], completion: Sequence[int]) -> tuple[float, ...]:
        """The model's log-probabilities, at temperature 1, of the tokens of `completion` after `prompt`."""

        async def score() -> tuple[float, ...]:
            tokens = torch.tensor([[*prompt, *completion]], device=self._model.device)
            with torch.inference_mode():
                logits = self._model(input_ids=tokens).logits[0, len(prompt) - 1 : -1]
            chosen = logits.float().log_softmax(dim=-1).gather(1, tokens[0, len(prompt) :, None])
            return tuple(chosen[:, 0].tolist())

        return await self._in_engine_thread(score) if completion else ()

    # -- control -----------------------------------------------------------------------------------------------------

    async def pause(self, *, wait: bool = False) -> None:
        """Starts no more completions; running ones are aborted or, with `wait`, finish."""
        self._set_state(paused=True)
        await self._drain(abort=not wait)

    def resume(self) -> None:
        """Ends a pause."""
        self._set_state(paused=False)

    async def load(self, folder: Path, label: str | None) -> None:
        """Loads the weights of a folder; see `_change`."""
        await self._change(lambda: load_published(self._model, folder), label)
        self._forget()

    async def load_own(self) -> None:
        """Loads the weights that the server was started with."""
        await self._change(lambda: self._model.load_state_dict(self._initial_state))
        self._forget()

    async def load_adapters(self, name: str, folder: Path) -> None:
        """Has it know adapters in peft's format. Raises SleuthError if it takes no such ones."""
        if self.max_rank is None:
            raise SleuthError("LoRA is not enabled. Use --enable-lora to enable LoRA.")
        if name in self.adapters:
            raise SleuthError(f"The lora adapter '{name}' has already been loaded.")
        if (rank := json.loads((folder / CONFIG).read_text())["r"]) > self.max_rank:
            raise SleuthError(f"LoRA rank {rank} is greater than max_lora_rank {self.max_rank}.")
        self.adapters[name] = folder

    async def unload_adapters(self, name: str) -> None:
        """Forgets them. Raises SleuthError if it has none of this name."""
        if name not in self.adapters:
            raise SleuthError(f"The lora adapter '{name}' cannot be found.")
        del self.adapters[name]

    async def answer_with(self, adapter: str | None) -> None:
        """Completions from now on are those with these adapters, or with none."""
        async with self._switching:
            if adapter != self._adapter:
                await self._change(lambda: self._add(adapter))

    def _add(self, adapter: str | None) -> None:
        self._take_off()
        self._adapter = adapter
        if adapter is None:
            return
        folder = self.adapters[adapter]
        config, factors = json.loads((folder / CONFIG).read_text()), load_file(folder / WEIGHTS_OF_ADAPTERS)
        weights = self._model.state_dict()
        for name in [name for name in factors if ".lora_A." in name]:
            at = name.removeprefix(PREFIX).replace(".lora_A.", ".")
            self._beneath[at] = weights[at].clone()
            product = factors[name.replace(".lora_A.", ".lora_B.")] @ factors[name]
            weights[at].add_(product, alpha=config["lora_alpha"] / config["r"])

    def _take_off(self) -> None:
        weights = self._model.state_dict()
        for name, weight in self._beneath.items():
            weights[name].copy_(weight)
        self._forget()

    def _forget(self) -> None:
        """All weights are others now."""
        self._adapter = None
        self._beneath.clear()

    async def load_tensors(self, state: Mapping[str, torch.Tensor], source: str, label: str | None = None) -> None:
        """Loads these weights, whose `source` errors name; see `_change`."""
        await self._change(lambda: load_state(self._model, state, source), label)

    async def _change(self, change: Callable[[], object], label: str | None = None) -> None:
        """Runs `change` once nothing is running, and sets the label if given. Raises SleuthError, with nothing changed,
        if the weights do not fit."""
        was_paused = self.paused
        self._set_state(paused=True)
        try:
            await self._drain()
            if not self.stale:
                await self._apply(change)
        finally:
            self._set_state(paused=was_paused)
        self.label = label or self.label

    async def restart(self) -> None:
        """Emulates a restart: aborts everything and restores the initial weights and label."""
        await self._drain(abort=True)
        await self._apply(lambda: self._model.load_state_dict(self._initial_state))
        self.adapters.clear()
        self._forget()
        self.label = INITIAL_WEIGHTS
        self._set_state(paused=False, asleep=frozenset())

    async def flush(self) -> bool:
        """Clears the prefix cache unless something is running; returns whether it did."""
        if self._running:
            return False
        await self._apply(lambda: None)
        return True

    async def sleep(self, *tags: str, keeps_weights: bool = False) -> None:
        """Releases parts of the memory and aborts what is running. Weights are lost unless `keeps_weights`."""
        self._set_state(asleep=self.asleep | set(tags))
        await self._drain(abort=True)
        if WEIGHTS in tags and not keeps_weights:
            await self._apply(lambda: [weight.data.zero_() for weight in self._model.parameters()])

    def wake(self, *tags: str) -> None:
        """Allocates these parts again, without restoring their content."""
        self._set_state(asleep=self.asleep - set(tags))

    def _set_state(self, *, paused: bool | None = None, asleep: frozenset[str] | None = None) -> None:
        self.paused = self.paused if paused is None else paused
        self.asleep = self.asleep if asleep is None else asleep
        (self._ready.clear if self.paused or self.asleep else self._ready.set)()

    # -- the engine's thread -----------------------------------------------------------------------------------------

    async def _apply(self, change: Callable[[], object]) -> None:
        async def work() -> SleuthError | None:
            try:
                change()
            except SleuthError as error:
                return error
            self._engine.publish(self._engine.policy_version + 1)
            return None

        if (error := await self._in_engine_thread(work)) is not None:
            raise error

    async def _in_engine_thread(self, work: Callable[[], Awaitable[Result]]) -> Result:
        async def only() -> AsyncGenerator[Result, None]:
            yield await work()

        async with aclosing(self.engine_thread.run(only())) as heard:
            return await anext(heard)

    async def _drain(self, *, abort: bool = False) -> None:
        """Waits until nothing is running."""
        if abort:
            for work in self._running:
                work.cancel()
        while self._running:
            await asyncio.wait(self._running)
            await asyncio.sleep(0)  # lets the callers remove themselves from `_running`


def load_published(model: PreTrainedModel, folder: Path) -> None:
    """Loads the weights of a folder into the model. Raises SleuthError, leaving the model unchanged, if weights are
    missing, do not fit the model, or do not match the checksum in the folder."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise SleuthError(f"{folder}: holds no .safetensors file")
    state = {name: weight for file in files for name, weight in load_file(file).items()}
    claimed = json.loads((folder / CARD).read_text())["sha256"]
    if claimed != (is_ := checksum(state)):
        raise SleuthError(f"{folder}: the weights have checksum {is_}, and {CARD} says {claimed}")
    load_state(model, state, str(folder))


def load_state(model: PreTrainedModel, state: Mapping[str, torch.Tensor], source: str) -> None:
    """Loads weights into the model. Raises SleuthError, which names their `source` and leaves the model unchanged, if
    weights are missing or do not fit."""
    ours = model.state_dict()
    for name, weight in state.items():
        if name not in ours or ours[name].shape != weight.shape:
            here = tuple(ours[name].shape) if name in ours else "no such weight"
            raise SleuthError(f"{source}: {name} is {tuple(weight.shape)} there and {here} in the model")
    held = {ours[name].data_ptr() for name in state}  # tied weights are written once
    if missing := [name for name, weight in ours.items() if name not in state and weight.data_ptr() not in held]:
        raise SleuthError(f"{source}: lacks {len(missing)} of the model's weights, such as {missing[0]}")
    with torch.no_grad():
        for name, weight in state.items():
            ours[name].copy_(weight)


class EngineEmulator(ABC):
    """The endpoints of one kind of server, for the model `name`. `raw`: log-probabilities are those before temperature;
    None is that server's default. `broadcast`: a vLLM takes weights as by NCCL (`emulator.no_card`)."""

    owner: ClassVar[str]
    """`owned_by` in the list of models."""
    raw_by_default: ClassVar[bool]

    def __init__(
        self,
        name: str,
        engine: EmulatedEngine,
        fault_injector: FaultInjector,
        *,
        raw: bool | None = None,
        broadcast: bool = False,
    ) -> None:
        self.name = name
        self.engine = engine
        self.fault_injector = fault_injector
        self.raw = self.raw_by_default if raw is None else raw
        self.broadcast = broadcast
        self.numbers = itertools.count()  # keys of completions without a seed

    @abstractmethod
    def routes(self) -> list[Route]:
        """All endpoints."""

    async def health(self, request: Request) -> Response:
        """Status 200 if the engine is running, else 503, without a body."""
        return Response(status_code=200 if self.engine.engine_thread.is_open else 503)

    async def load_adapters(self, request: Request) -> Response:
        """Both servers name its parameters alike."""
        body = await request.json()
        return await self.adapters_changed(self.engine.load_adapters(body["lora_name"], Path(body["lora_path"])))

    async def unload_adapters(self, request: Request) -> Response:
        """The same."""
        body = await request.json()
        return await self.adapters_changed(self.engine.unload_adapters(body["lora_name"]))

    @abstractmethod
    async def adapters_changed(self, change: Awaitable[None]) -> Response:
        """Its answer."""

    async def logprobs(self, prompt: Sequence[int], completion: Completion, sampling: Sampling) -> Sequence[float]:
        """The log-probabilities of a completion as this server returns them: at temperature 1 for greedy ones."""
        if self.raw and sampling.temperature not in (0.0, 1.0):
            return await self.engine.raw_logprobs(prompt, completion.tokens)
        return completion.logprobs or ()
