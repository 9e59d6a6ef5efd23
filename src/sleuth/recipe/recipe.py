"""`Recipe`: the root table of a recipe file, and the checks that compare stages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, NonNegativeInt

from sleuth.host.hardware import read_cards
from sleuth.recipe.envs import EnvFields
from sleuth.recipe.grpo import GrpoRecipe, PoolRecipe
from sleuth.recipe.rewards import RewardFields
from sleuth.recipe.stage import EvaluateRecipe, StageFields
from sleuth.recipe.strict import Name, OneOf, Row, StrictModel, combination
from sleuth.recipe.training import InitRecipe, SupervisedRecipe, TrainingRecipe

Kind = TypeVar("Kind", bound=StageFields)
LEAST_REQUESTS, MOST_REQUESTS = 64, 256
"""Turns in flight at a server: no fewer, for an evaluation has more questions than a small step has episodes, and no
more than vLLM runs at once by default."""


def _nearest(indices: Iterable[int], index: int) -> int:
    """The index nearest to `index`; of two, the earlier."""
    return min(indices, key=lambda at: (abs(at - index), at))


class ResolvedFrom(StrictModel):
    """The files and overrides of a resolved recipe; written by `load_recipe`."""

    files: Row[str] = ()
    """The files that were merged, the outermost parent first."""
    set: Row[str] = ()
    """The overrides of their `[set]` tables and of `--set`, in the order in which they were applied."""


class Recipe(StrictModel):
    """A run: the model, and the stages in order.

    `load_recipe("recipes/demo.toml").stage[0].kind == "evaluate"`.
    """

    named: ClassVar[Mapping[str, str]] = {"model": "model", "trackers": "trackers"}
    name: Name
    """Name of the run."""
    families: Row[str] = ()
    """Families of others, MODULE:NAME, whose stages, environments, rewards, judges and data the recipe may then name.
    Of an installed package that lists its families among its entry points, none needs to be named."""
    model: str = ""
    """The base model: a folder or a hub id. Required unless the first stage has an `[init]` table."""
    card: str | None = None
    """The GPUs that the run is meant for, such as "1 x 80 GB" or "8 x h100-80". `sleuth check recipe` computes whether
    it fits them; nothing else depends on this key."""
    seed: NonNegativeInt = 0
    """Seed of all random draws of the run."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the weights in computation; with bfloat16 the optimiser keeps float32 master weights."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the run; "auto": a GPU if there is one."""
    trackers: Row[Literal["tensorboard", "wandb"]] = ()
    """Trackers that receive the figures of `metrics.jsonl` too; needs `pip install "sleuth[trackers]"`."""
    stage: Annotated[Row[Annotated[StageFields, OneOf("stages")]], Field(min_length=1)]
    """The stages, in the order in which they run."""
    resolved_from: ResolvedFrom = ResolvedFrom()
    """Written by `sleuth` into resolved copies; cannot be set."""

    def stages_of(self, kind: type[Kind]) -> dict[int, Kind]:
        """The stages of a class, such as `TrainingRecipe`, by their index."""
        return {at: stage for at, stage in enumerate(self.stage) if isinstance(stage, kind)}

    def first_step(self, index: int) -> int:
        """Steps of the stages before one: its own are counted from there in the names of checkpoints."""
        return sum(stage.steps for at, stage in self.stages_of(TrainingRecipe).items() if at < index)

    @property
    def steps(self) -> int:
        """Optimiser steps of all stages."""
        return sum(stage.last_step for stage in self.stage)

    @property
    def init(self) -> InitRecipe | None:
        """The random weights that the run starts from, if it has no `model`."""
        return getattr(self.stage[0], "init", None)

    def env_and_context(self, index: int) -> tuple[EnvFields, int]:
        """Environment and context of a stage that plays episodes. An evaluation without its own takes those of the
        nearest `grpo` stage (of two, the earlier), so that evaluation matches training."""
        trained, stage = self.question_stages(), self.stage[index]
        if index in trained:
            return trained[index].env, trained[index].context
        if not isinstance(stage, EvaluateRecipe):
            raise ValueError(f"stage.{index} ({stage.name}) asks no questions")
        if not trained:
            assert stage.env is not None  # the checks below let no such recipe pass
            assert stage.context is not None
            return stage.env, stage.context
        near = trained[_nearest(trained, index)]
        return stage.env or near.env, stage.context or near.context

    def refine_env_and_context(self, index: int) -> tuple[EnvFields, int | None]:
        """Environment and context of a supervised stage on answered rows: its own environment, or that of the nearest
        `grpo` stage, whose context it takes. None as context: only the model's own limit."""
        stage, trained = self.stages_of(SupervisedRecipe)[index], self.question_stages()
        near = trained[_nearest(trained, index)] if trained else None
        env = stage.env or (near.env if near else None)
        if env is None or env.plays != "refiner":
            raise ValueError(
                f'stage.{index}.env is missing: data.kind = "rows" needs an env of kind = "refine", and there is no '
                "grpo stage with one"
            )
        return env, near.context if near else None

    def rewards_for(self, index: int) -> tuple[RewardFields, ...]:
        """The rewards of the `grpo` stage nearest to a stage; empty without one."""
        trained = self.question_stages()
        return trained[_nearest(trained, index)].reward if trained else ()

    def engine_at(self, index: int) -> PoolRecipe | None:
        """The servers that generate for a stage: its own, for a warm start those of the `grpo` stage that it prepares,
        for a stage that measures those of the nearest `grpo` stage (of two, the earlier). None: this process."""
        stages, like = self.stages_of(GrpoRecipe), self.stage[index].plays_like
        if like == "next":
            return self.grpo_stage_after(index).engine
        if index in stages or (stages and like == "nearest"):
            return stages[_nearest(stages, index)].engine
        return None

    def served_cards(self, count: int) -> set[int]:
        """Those of `count` GPUs that judges and teachers have whose servers the run starts."""
        launched = [model for stage in self.stage for model in stage.launched()]
        return {card for model in launched for card in model.on_cards(count)}

    def context_of(self, pool: PoolRecipe) -> int:
        """The longest episode, in tokens, that these servers play in stages whose recipe says so."""
        lengths = {index: stage.context for index, stage in self.stages_of(GrpoRecipe).items()}
        lengths |= {index: self.env_and_context(index)[1] for index in self.stages_of(EvaluateRecipe)}
        return max(length for index, length in lengths.items() if self.engine_at(index) == pool)

    def requests_of(self, pool: PoolRecipe, servers: int) -> int:
        """How many turns each of so many servers of a pool has in flight: as many as the pool says, or else its share
        of the largest step."""
        if pool.requests_at_once is not None:
            return pool.requests_at_once
        playing = [stage.player(self, at) for at, stage in self.stages_of(GrpoRecipe).items() if stage.engine == pool]
        episodes = max(prompts * samples for _, prompts, samples in playing)
        return min(max(-(-episodes // servers), LEAST_REQUESTS), MOST_REQUESTS)

    def question_stages(self) -> dict[int, GrpoRecipe]:
        """The `grpo` stages that ask questions, by their index."""
        return {at: stage for at, stage in self.stages_of(GrpoRecipe).items() if stage.env.plays != "thought"}

    def awaited(self, index: int) -> Path | None:
        """A file that a stage reads, that an earlier one makes and that does not exist yet; None if there is none."""
        made = {file for stage in self.stage[:index] for file in stage.makes()}
        stage: Any = self.stage[index]
        texts = (getattr(getattr(stage, key, None), "texts", None) for key in ("data", "held_out"))
        return next((file for file in texts if file is not None and file in made and not file.exists()), None)

    def grpo_stage_after(self, index: int) -> GrpoRecipe:
        """The next `grpo` stage, which a warm start prepares."""
        stage = next((stage for at, stage in self.stages_of(GrpoRecipe).items() if at > index), None)
        if stage is None:
            raise ValueError(f'stage.{index}.kind = "warm_start" needs a grpo stage after it, and there is none')
        return stage

    @combination
    def _keys_fit(self) -> Iterator[str]:
        if self.card is not None:
            try:
                read_cards(self.card)
            except ValueError as error:
                yield f"card = {json.dumps(self.card)}: {error}"
        inits = [getattr(stage, "init", None) is not None for stage in self.stage]
        if not self.model and not inits[0]:
            yield "model is missing: name a folder or a hub id, or give the first stage an [stage.init] table"
        if any(inits[1:]):
            index = inits.index(True, 1)
            yield f"stage.{index}.init would discard the weights of the stages before it; only the first stage may"

    @combination
    def _stages_fit(self) -> Iterator[str]:
        for index, stage in enumerate(self.stage):
            yield from stage.problems(self, index)
            yield from (f"stage.{index}.{problem}" for problem in stage.evaluation_problems(self))
            if self.device == "cpu" and getattr(stage, "cpu_offload", False):
                yield f'stage.{index}.cpu_offload = true has no effect with device = "cpu"; remove it'

    @combination
    def _names_differ(self) -> Iterator[str]:
        seen: dict[str, int] = {}
        for index, stage in enumerate(self.stage):
            if stage.name in seen:
                yield f'stage.{index}.name = "{stage.name}" is already the name of stage.{seen[stage.name]}; change it'
            seen[stage.name] = index
        for index, stage in self.stages_of(EvaluateRecipe).items():
            if stage.forced_search_arm and (name := f"{stage.name}_forced") in seen:
                yield f"stage.{seen[name]}.name = {name!r} is where stage.{index}.forced_search_arm writes; change it"
