"""The engine that samples the episodes of a stage that trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.remote.capabilities import discover_servers
from sleuth.engines.remote.pool import PoolEngine, PoolLimits
from sleuth.engines.stops import end_tokens
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.types import Engine


class TrainingEngine(Engine, Protocol):
    """An engine that samples with the learner's weights."""

    def publish(self, version: int) -> None:
        """The weights have changed; what is sampled next has this version."""
        ...

    def rest(self) -> None:
        """No request comes until the next `publish`."""
        ...

    def figures(self) -> dict[str, float]:
        """Figures for a step's row of `metrics.jsonl`, since the last call."""
        ...


def engine_of(
    stage: GrpoRecipe,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    *,
    weights: Path,
    say: Callable[[str], None],
) -> tuple[TrainingEngine, list[dict[str, Any]]]:
    """The engine in this process, or the recipe's pool, which loads its weights from the folder `weights` unless the
    recipe names another; and the manifest's record of its servers. Raises SleuthError if a server cannot be used."""
    pool = stage.engine
    if pool is None:
        return LocalEngine(model, tokenizer, slots=stage.slots, context=stage.context), []
    ends = end_tokens(model.generation_config, tokenizer)
    temperature = stage.sampling.temperature
    servers = discover_servers(
        pool.urls, tokenizer=tokenizer, ends=ends, context=stage.context, temperature=temperature, say=say
    )
    limits = PoolLimits(
        requests_at_once=pool.requests_at_once,
        seconds=pool.seconds,
        unavailable_timeout=pool.unavailable_timeout,
        sleeps=pool.sleeps,
    )
    engine = PoolEngine(
        servers,
        model,
        tokenizer,
        ends=ends,
        context=stage.context,
        temperature=temperature,
        limits=limits,
        shared=(pool.weights or weights).resolve(),
        say=say,
    )
    return engine, [discovered.as_json() for discovered in servers]
