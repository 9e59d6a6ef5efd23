"""The memory of a server that a run starts, beside the learner on one card or on a CPU."""

from __future__ import annotations

from sleuth.plan.memory import CUDA, SIZES, total
from sleuth.plan.phases import SERVER, Machine, learner_of
from sleuth.plan.shapes import shape_of
from sleuth.recipe import GrpoRecipe, Recipe
from sleuth.recipe.grpo import PoolRecipe
from sleuth.types import SleuthError

MARGIN = 2_000_000_000
"""Bytes of a shared card that nobody takes."""
LEAST_CPU_CACHE = 1_000_000_000
MOST_CPU_CACHE = 8_000_000_000


def server_memory(
    recipe: Recipe, pool: PoolRecipe, given: int | None, card: int | None, context: int, *, ranks: int = 1
) -> int | None:
    """Bytes of a server of this pool. On a card of `card` bytes: those that are `given`, or else what the most
    demanding stage leaves of it while the server is awake. On a CPU (None): of its KV cache alone. Raises SleuthError
    if the model does not fit them with one sequence of `context` tokens. None if the model's shape cannot be had.
    """
    if not recipe.model:
        return given
    try:
        shape = shape_of(recipe.model)[0]
    except SleuthError:
        return given
    size = SIZES[recipe.dtype]
    sequence = shape.bytes_per_token(size) * context
    if card is None:
        wanted = min(max(LEAST_CPU_CACHE, pool.requests_at_once * sequence), MOST_CPU_CACHE)
        return _enough(recipe, wanted if given is None else given, sequence, "its KV cache")
    if given is None:
        machine = Machine(device=CUDA, memory=card, ranks=ranks)
        held = [
            total(learner_of(recipe, index, shape, machine).state()[0])
            for index, stage in recipe.stages_of(GrpoRecipe).items()
            if stage.engine == pool
        ]
        held += [
            stage.models * size * shape.weights
            for index, stage in enumerate(recipe.stage)
            if stage.measures and recipe.engine_at(index) == pool
        ]
        given = card - CUDA.libraries - max(held) - MARGIN
    return _enough(recipe, given, SERVER + size * shape.weights + sequence, "weights, work and one sequence")


def _enough(recipe: Recipe, memory: int, needed: int, what: str) -> int:
    if memory < needed:
        raise SleuthError(
            f"engine.launch: {recipe.model} is too large for a server with {max(0, memory) / 1e9:.1f} GB: "
            f"{needed / 1e9:.1f} GB are needed for {what}; raise engine.memory, lower the stage's context, or give the "
            "server a GPU of its own with engine.cards"
        )
    return memory
