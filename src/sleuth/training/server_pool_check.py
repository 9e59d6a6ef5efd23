"""Checks the servers of a stage's pool before a run, all of them, whatever is found of the others."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from sleuth.engines.remote.server import discover_server
from sleuth.learn.models import load_model, load_outline
from sleuth.recipe import GrpoRecipe, Recipe
from sleuth.training.engines import pool_engine_of
from sleuth.types import SleuthError


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result for one server: `Finding(url="http://127.0.0.1:8000", line="vLLM 0.32.0, ...", ok=True,
    seconds=0.4)`. `seconds` is how long its checks took."""

    url: str
    line: str
    ok: bool
    seconds: float


def pooled_stages(recipe: Recipe) -> list[int]:
    """The indices of the stages with a pool of servers that run already."""
    stages = recipe.stages_of(GrpoRecipe).items()
    return [at for at, stage in stages if stage.engine is not None and stage.engine.urls]


def pool_findings(recipe: Recipe, index: int) -> list[Finding]:
    """Each server of a stage's pool, checked as training would. All are checked at once, so that one that hangs delays
    no other."""
    stage = recipe.stages_of(GrpoRecipe)[index]
    assert stage.engine is not None
    assert stage.engine.urls
    outline = load_outline(recipe.model)

    def finding(url: str) -> Finding:
        started = time.monotonic()
        try:
            discovered = discover_server(url, tokenizer=outline.tokenizer, eos_ids=outline.eos_ids)
            problems = discovered.problems(context=stage.context, temperature=stage.sampling.temperature)
            line = "; ".join(problems) or str(discovered).removeprefix(f"{discovered.url}: ")
        except SleuthError as error:
            problems, line = [str(error)], str(error).removeprefix(f"engine.urls: {url}: ")
        return Finding(url=url, line=line, ok=not problems, seconds=time.monotonic() - started)

    with ThreadPoolExecutor(len(stage.engine.urls)) as asking:
        return list(asking.map(finding, stage.engine.urls))


def send_weights(recipe: Recipe, index: int) -> float:
    """Sends the recipe's model to the servers, as the first step would, and compares what they sample with the model;
    the seconds it took. Raises SleuthError if a server did not load the weights."""
    stage = recipe.stages_of(GrpoRecipe)[index]
    assert stage.engine is not None
    model, tokenizer = load_model(recipe.model, dtype=recipe.dtype, device=recipe.device)
    shared = stage.engine.weights
    place: AbstractContextManager[str] = nullcontext(str(shared)) if shared else tempfile.TemporaryDirectory()
    lines: list[str] = []
    with place as weights:
        engine, _ = pool_engine_of(
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


def unhealthy(findings: Sequence[Finding]) -> str | None:
    """A line about the servers that cannot be used; None if there are none."""
    bad = [finding for finding in findings if not finding.ok]
    return f"{len(bad)} of {len(findings)} servers of the pool cannot be used" if bad else None
