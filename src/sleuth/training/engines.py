"""The engines of a stage: in this process, or a pool of servers; and the check of such a pool before a run."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.engines.local.batching import BatchingEngine
from sleuth.engines.local.cache import bytes_per_token, pages_of
from sleuth.engines.local.plain_engine import open_engine
from sleuth.engines.remote.pool import SAID_SECONDS, PoolEngine, PoolLimits
from sleuth.engines.remote.published import KEPT_VERSIONS
from sleuth.engines.remote.roster import Roster
from sleuth.engines.remote.server import DiscoveredServer, discover_server, discover_servers
from sleuth.kernels.device import release_cached_memory
from sleuth.learn.models import load_model, load_outline, plain_reason
from sleuth.ranks import ALONE, Ranks
from sleuth.recipe import Recipe
from sleuth.recipe.grpo import GrpoRecipe, PoolRecipe
from sleuth.render import find_eos_ids
from sleuth.training.servers import StartedServers
from sleuth.training.stage_context import StageContext
from sleuth.types import Engine, SleuthError

Result = TypeVar("Result")
RETRY_PAUSE = 1.0
"""Seconds before a server that an earlier stage has used is asked again."""


class TrainingEngine(Engine, Protocol):
    """An engine that samples with the learner's weights."""

    def publish(self, version: int) -> None:
        """The weights have changed; what is sampled next has this version."""
        ...

    def sleep(self) -> None:
        """Releases device memory until the next `publish`, where the engine can."""
        ...

    def figures(self) -> dict[str, Any]:
        """Figures for a step's row of `metrics.jsonl`, since the last call."""
        ...


def training_engine(
    stage: GrpoRecipe, context: StageContext, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> tuple[TrainingEngine, list[DiscoveredServer]]:
    """The engine in this process, or the recipe's pool, which loads its weights from the run's folder `weights` unless
    the recipe names another; and the pool's servers. Raises SleuthError if one of them cannot be used."""
    if stage.engine is None:
        return local_engine(context, model, tokenizer, stage.context), []
    return _pool_of(context, stage.engine, model, tokenizer, stage.context, stage.sampling.temperature)


def _pool_of(
    context: StageContext,
    pool: PoolRecipe,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    longest: int,
    temperature: float = 1.0,
    patience: float = 0.0,
) -> tuple[PoolEngine, list[DiscoveredServer]]:
    """As `_open_pool`, for a stage of a run, which starts the servers if the recipe names none that run already."""
    servers, folder, ranks = context.servers, context.folder, context.ranks
    engine, discovered = _open_pool(
        context.recipe,
        pool,
        model,
        tokenizer,
        context=longest,
        temperature=temperature,
        weights=folder.path / "weights",
        say=folder.say,
        started=ranks.broadcast(lambda: servers.of(pool, context.model, longest) if servers else None),
        ranks=ranks,
        patience=patience,
    )
    if servers is not None:
        servers.found(pool, discovered)
    return engine, discovered


def local_engine(
    context: StageContext, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, longest: int
) -> BatchingEngine:
    """The engine in this process, for this rank's samples of a step, of at most `longest` tokens. A paged cache has as
    many pages as when the stage began, if it did, on all ranks as many as rank 0 has room for."""
    folder, ranks = context.folder, context.ranks
    stage: Any = context.stage
    slots = max(1, min(stage.slots, -(-stage.prompts_per_step // ranks.world) * stage.samples_per_prompt))

    opened = partial(open_engine, model, tokenizer, slots=slots, context=longest, log=folder.say)
    if plain_reason(model.config, trains=False) is not None:
        return opened()

    def pages() -> int:
        limits = {"slots": slots, "context": longest, "cache_memory": stage.cache_memory}
        recorded = folder.manifest.recorded("cache_pages", stage.name)
        return pages_of(bytes_per_token(model.config, model.dtype), model.device, **limits, recorded=recorded)

    def record(pages: int) -> None:
        if ranks.first and folder.manifest.recorded("cache_pages", stage.name) != pages:
            folder.manifest.record("cache_pages", pages, stage=stage.name)

    size = ranks.broadcast(pages)
    record(size)
    return opened(cache_pages=size, resized=record)


def evaluation_pool(
    context: StageContext, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, longest: int
) -> PoolEngine | None:
    """The servers that generate sequences of at most `longest` tokens for a stage, with the weights of `model`; None
    where the recipe names none, so that this process does. Raises SleuthError if a server cannot be used; where an
    earlier stage has used them, only after `unavailable_timeout` seconds, for a server that is being restarted must not
    end a run."""
    if (pool := context.recipe.engine_at(context.index)) is None:
        return None
    release_cached_memory()
    patience = pool.unavailable_timeout if context.first_step else 0.0
    # An evaluation needs no log-probabilities, at whatever temperature.
    engine, _ = _pool_of(context, pool, model, tokenizer, longest, patience=patience)
    engine.publish(context.first_step)
    return engine


def retried(work: Callable[[], Result], seconds: float, say: Callable[[str], None]) -> Result:
    """The result of `work`, which is called again for so many seconds while it raises SleuthError."""
    deadline, said = time.monotonic() + seconds, -SAID_SECONDS
    while True:
        try:
            return work()
        except SleuthError as error:
            now = time.monotonic()
            if now >= deadline:
                raise
            if now - said >= SAID_SECONDS:
                say(f"{error}; asking again for {deadline - now:.0f} seconds")
                said = now
            time.sleep(RETRY_PAUSE)


def _open_pool(
    recipe: Recipe,
    pool: PoolRecipe,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    *,
    context: int,
    temperature: float,
    weights: Path,
    say: Callable[[str], None],
    started: StartedServers | None = None,
    ranks: Ranks = ALONE,
    patience: float = 0.0,
) -> tuple[PoolEngine, list[DiscoveredServer]]:
    """A recipe's pool for episodes of at most `context` tokens, and its servers: those that the run has `started`,
    where the recipe names none that run already. The first of several `ranks` reads their addresses and asks what they
    can do, again for `patience` seconds where one does not answer. Servers that the run has started read the weights
    from shared memory, if it has room."""
    eos_ids = find_eos_ids(model.generation_config, tokenizer)
    urls = started.urls if started is not None else ranks.broadcast(pool.addresses)
    probed = {"tokenizer": tokenizer, "eos_ids": eos_ids, "context": context, "temperature": temperature}
    servers = list(started.discovered) if started is not None else []
    discover = partial(discover_servers, urls, **probed, log=say, some=pool.changes)
    servers = servers or ranks.broadcast(lambda: retried(discover, patience, say))
    roster = Roster(pool.addresses, lambda url: discover_servers([url], **probed, log=say)[0], say)
    hosts = {*ranks.all_gather([socket.gethostname()])}
    if started is not None and len(hosts) == 1 and ranks.broadcast(lambda: can_hold(started.weights, model)):
        weights = started.weights
    engine = PoolEngine(
        servers,
        model,
        limits=PoolLimits(
            requests_at_once=started.requests if started is not None else recipe.requests_of(pool, len(urls)),
            seconds=pool.seconds,
            unavailable_timeout=pool.unavailable_timeout,
            sleeps=pool.sleeps or (started is not None and started.sleeps),
            max_policy_lag=pool.max_policy_lag,
        ),
        shared=(pool.weights or weights).resolve(),
        log=say,
        asleep=started is not None and started.asleep,
        ranks=ranks,
        roster=roster if pool.changes and ranks.first else None,
        **probed,
    )
    return engine, servers


def can_hold(folder: Path, model: nn.Module) -> bool:
    """Whether there is room for the versions of the weights that the folder keeps, one that is written, and as much
    again for others. Makes the folder, whose name others can guess: if it is not this user's alone, it is not used."""
    size = sum(weight.nbytes for weight in model.parameters())
    if not folder.parent.is_dir() or shutil.disk_usage(folder.parent).free <= 2 * (KEPT_VERSIONS + 1) * size:
        return False
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedServer:
    """A server as training would find it: `CheckedServer(url="http://127.0.0.1:8000", line="vLLM 0.32.0, ...",
    ok=True, seconds=0.4)`. `seconds` is how long its checks took."""

    url: str
    line: str
    ok: bool
    seconds: float


def pooled_stages(recipe: Recipe) -> list[int]:
    """The indices of the stages with a pool of servers that run already."""
    stages = recipe.stages_of(GrpoRecipe).items()
    return [at for at, stage in stages if stage.engine is not None and stage.engine.urls]


def check_pool(recipe: Recipe, index: int) -> list[CheckedServer]:
    """Each server of a stage's pool, checked as training would. All are checked at once, so that one that hangs delays
    no other."""
    stage = recipe.stages_of(GrpoRecipe)[index]
    assert stage.engine is not None
    urls = stage.engine.addresses()
    outline = load_outline(recipe.model)

    def check(url: str) -> CheckedServer:
        started = time.monotonic()
        try:
            discovered = discover_server(url, tokenizer=outline.tokenizer, eos_ids=outline.eos_ids)
            problems = discovered.problems(context=stage.context, temperature=stage.sampling.temperature)
            line = "; ".join(problems) or str(discovered).removeprefix(f"{discovered.url}: ")
        except SleuthError as error:
            problems, line = [str(error)], str(error).removeprefix(f"engine.urls: {url}: ")
        return CheckedServer(url=url, line=line, ok=not problems, seconds=time.monotonic() - started)

    with ThreadPoolExecutor(len(urls)) as asking:
        return list(asking.map(check, urls))


def send_weights(recipe: Recipe, index: int) -> float:
    """Sends the recipe's model to the servers, as the first step would, and compares what they sample with the model;
    the seconds it took. Raises SleuthError if a server did not load the weights."""
    stage = recipe.stages_of(GrpoRecipe)[index]
    assert stage.engine is not None
    model, tokenizer = load_model(recipe.model, dtype=recipe.dtype, device=recipe.device)
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as weights:
        engine, _ = _open_pool(
            recipe,
            stage.engine,
            model,
            tokenizer,
            context=stage.context,
            temperature=stage.sampling.temperature,
            weights=Path(weights),
            say=lines.append,
        )
        started = time.monotonic()
        engine.publish(0)
        seconds = time.monotonic() - started
    if without := [line for line in lines if line.startswith("without")]:
        raise SleuthError(without[0])
    return seconds
