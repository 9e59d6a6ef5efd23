"""The engine that samples the episodes of a stage that trains."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.engines.local.cache import bytes_per_token, pages_of
from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.remote.capabilities import DiscoveredServer, discover_servers
from sleuth.engines.remote.pool import SAID_SECONDS, PoolEngine, PoolLimits
from sleuth.kernels.allocator import release_cached_memory
from sleuth.ranks import ALONE, Ranks
from sleuth.recipe.grpo import GrpoRecipe, PoolRecipe
from sleuth.render import find_eos_ids
from sleuth.runs.run_folder import RunFolder
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

    def figures(self) -> dict[str, float]:
        """Figures for a step's row of `metrics.jsonl`, since the last call."""
        ...


class PlayingStage(Protocol):
    """A stage whose episodes an engine in this process samples."""

    name: Any
    slots: Any
    cache_memory: Any
    prompts_per_step: Any
    samples_per_prompt: Any


def local_engine_of(
    stage: PlayingStage,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    *,
    context: int,
    folder: RunFolder,
    ranks: Ranks,
) -> LocalEngine:
    """The engine in this process, for this rank's samples of a step. Its cache has as many pages as when the stage
    began, if it did, on all ranks as many as rank 0 has room for."""
    slots = max(1, min(stage.slots, -(-stage.prompts_per_step // ranks.world) * stage.samples_per_prompt))

    def pages() -> int:
        limits = {"slots": slots, "context": context, "cache_memory": stage.cache_memory}
        recorded = folder.manifest.recorded("cache_pages", stage.name)
        return pages_of(bytes_per_token(model.config, model.dtype), model.device, **limits, recorded=recorded)

    engine = LocalEngine(
        model, tokenizer, slots=slots, context=context, cache_pages=ranks.broadcast(pages), log=folder.say
    )
    record_cache(stage.name, engine, folder, ranks)
    return engine


def record_cache(stage: str, engine: object, folder: RunFolder, ranks: Ranks) -> None:
    """Stores the size of the cache of an engine in this process in the manifest, if it is not what is stored there."""
    if (
        ranks.first
        and isinstance(engine, LocalEngine)
        and folder.manifest.recorded("cache_pages", stage) != engine.cache_pages
    ):
        folder.manifest.record("cache_pages", engine.cache_pages, stage=stage)


def engine_of(
    stage: GrpoRecipe,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    *,
    folder: RunFolder,
    ranks: Ranks,
    started: StartedServers | None = None,
) -> tuple[TrainingEngine, list[DiscoveredServer]]:
    """The engine in this process, or the recipe's pool, which loads its weights from the run's folder `weights` unless
    the recipe names another; and the pool's servers. Raises SleuthError if one of them cannot be used."""
    if stage.engine is not None:
        return pool_engine_of(
            stage.engine,
            model,
            tokenizer,
            context=stage.context,
            temperature=stage.sampling.temperature,
            weights=folder.path / "weights",
            say=folder.say,
            started=started,
            ranks=ranks,
        )
    return local_engine_of(stage, model, tokenizer, context=stage.context, folder=folder, ranks=ranks), []


def pool_engine_of(
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
) -> tuple[PoolEngine, list[DiscoveredServer]]:
    """A recipe's pool for episodes of at most `context` tokens, sampled at a `temperature` with the log-probabilities
    that training needs. It loads its weights from the folder `weights` unless the recipe names another. With it, its
    servers. Raises SleuthError if one of them cannot be used.

    `started` are the servers that the run has started for this pool, where the recipe names none that run already. The
    first of several `ranks` asks the servers what they can do.
    """
    eos_ids = find_eos_ids(model.generation_config, tokenizer)
    urls = started.urls if started is not None else pool.urls or ()
    servers = list(started.discovered) if started is not None else []
    servers = servers or ranks.broadcast(
        lambda: discover_servers(
            urls, tokenizer=tokenizer, eos_ids=eos_ids, context=context, temperature=temperature, log=say
        )
    )
    limits = PoolLimits(
        requests_at_once=pool.requests_at_once,
        seconds=pool.seconds,
        unavailable_timeout=pool.unavailable_timeout,
        sleeps=pool.sleeps or (started is not None and started.sleeps),
        max_policy_lag=pool.max_policy_lag,
    )
    engine = PoolEngine(
        servers,
        model,
        tokenizer,
        eos_ids=eos_ids,
        context=context,
        temperature=temperature,
        limits=limits,
        shared=(pool.weights or weights).resolve(),
        log=say,
        asleep=started is not None and started.asleep,
        ranks=ranks,
    )
    return engine, servers


def evaluation_pool(
    context: StageContext, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, longest: int
) -> PoolEngine | None:
    """The servers that generate sequences of at most `longest` tokens for a stage, with the weights of `model`; None
    where the recipe names none, so that this process does. For one process. Raises SleuthError if a server cannot be
    used; where an earlier stage has used them, only after `unavailable_timeout` seconds, for a server that is being
    restarted must not end a run."""
    pool, servers, folder = context.recipe.engine_at(context.index), context.servers, context.folder
    if pool is None:
        return None
    release_cached_memory()
    open_pool = partial(
        pool_engine_of,
        pool,
        model,
        tokenizer,
        context=longest,
        temperature=1.0,  # an evaluation does not need log-probabilities
        weights=folder.path / "weights",
        say=folder.say,
        started=servers.of(pool, context.model, longest) if servers is not None else None,
    )
    engine, discovered = retried(open_pool, pool.unavailable_timeout if context.first_step else 0.0, folder.say)
    if servers is not None:
        servers.found(pool, discovered)
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
