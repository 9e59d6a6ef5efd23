"""What a rank of so many will hold at its peak, reckoned from what one process held in a probe."""

from __future__ import annotations

from dataclasses import dataclass

from sleuth.plan.probe import Probe
from sleuth.recipe import GrpoRecipe, OnlineDpoRecipe, Recipe, TrainingRecipe

FP32 = 4
MOMENTS = 2 * FP32
"""Bytes of a weight's moments: AdamW's, for ranks take no other optimiser."""
STORED = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes at their peak: `each` rank's, where it computes, and in the memory of its `host`, which is the same where
    it computes there; and what the first holds in its host's memory at a save, when the whole state comes together.
    `RankMemory(world=4, each=1_076_000_000, host=1_076_000_000, first=1_604_000_000)`."""

    world: int
    each: int
    host: int
    first: int


def rank_memory(recipe: Recipe, probe: Probe, world: int) -> RankMemory:
    """Of the hungriest stage. What does not depend on the weights (libraries, activations, the engine's cache) is what
    the probe's process held beside them."""
    stages = [stage for stage in recipe.stage if isinstance(stage, TrainingRecipe) and stage.name in probe.rows]
    of_stages = [_of_stage(recipe, stage, probe, world) for stage in stages]
    return RankMemory(
        world=world,
        each=max((one.each for one in of_stages), default=0),
        host=max((one.host for one in of_stages), default=0),
        first=max((one.first for one in of_stages), default=0),
    )


def _of_stage(recipe: Recipe, stage: TrainingRecipe, probe: Probe, world: int) -> RankMemory:
    cost, (stored, state) = probe.costs[stage.name], probe.checkpoints[stage.name]
    computed = STORED[recipe.dtype]  # bytes of a weight in the forward pass
    masters = FP32 if computed < FP32 and stage.master_weights else 0
    stepped = state // (MOMENTS + masters)  # weights that learn
    reference = stored if _measures_from_the_beginning(stage) else 0
    # In one process a step holds the weights, their gradients and moments, and masters or a copy to compare with.
    alone = stored + stepped * (MOMENTS + FP32 + (masters or computed)) + reference
    if world == 1:
        each = cost.gpu_memory or cost.host_memory
        return RankMemory(world=1, each=each, host=cost.host_memory, first=cost.host_memory)
    # On ranks it is fullest behind a step: the whole model, and in shards weights, moments and the copy.
    shards = stepped * (MOMENTS + (masters or computed)) + (stored - stepped * computed) + reference
    copied, own = stepped * computed, shards // world
    beside = max(0, (cost.gpu_memory or cost.host_memory) - alone)
    each = beside + stored + (shards + copied) // world
    if not cost.gpu_memory:
        return RankMemory(world=world, each=each, host=each, first=beside + stored + own + state)
    if not stage.cpu_offload:
        return RankMemory(world=world, each=each, host=cost.host_memory, first=cost.host_memory + state)
    # What is stepped is fullest in a step, when its gradients lie beside it.
    stepping = (shards + copied + stepped * FP32) // world
    return RankMemory(
        world=world,
        each=beside + stored,
        host=cost.host_memory + stepping,
        first=cost.host_memory + own + state,
    )


def _measures_from_the_beginning(stage: TrainingRecipe) -> bool:
    """Whether it holds the weights that it began with too."""
    if isinstance(stage, GrpoRecipe):
        return bool(stage.loss.beta)
    return isinstance(stage, OnlineDpoRecipe) and stage.loss.kind == "dpo"
